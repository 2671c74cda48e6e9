"""Tests of attention, and of the masks and the dropout of the layers around it."""

import inspect

import keras
import numpy as np
import numpy_transformer
import pytest
import tensorflow as tf

from tf_transformer.layers.attention import (
    CausalSelfAttention,
    CrossAttention,
    GlobalSelfAttention,
    MultiHeadAttention,
)
from tf_transformer.layers.decoder import Decoder, DecoderLayer
from tf_transformer.layers.encoder import Encoder, EncoderLayer
from tf_transformer.layers.positions import PositionalEmbedding
from tf_transformer.layers.restricted_attention import RestrictedSelfAttention

RNG = np.random.default_rng(7)
X = RNG.normal(size=(2, 5, 12))
CONTEXT = RNG.normal(size=(2, 4, 12))
TRIANGLE = np.tril(np.ones((1, 5, 5), bool))
PADDING = np.array([[[1, 1, 1, 0]], [[1, 0, 0, 0]]], bool)
# Each query may attend to something, or the paper's formula has no answer.
ANY = RNG.random((2, 5, 4)) < 0.5
ANY[:, :, 1] = True
ANY_SELF = RNG.random((2, 5, 5)) < 0.5
ANY_SELF[:, :, 0] = True

# name: class, inputs, mask given, what queries may then attend to
CASES = {
    "cross, any mask": (MultiHeadAttention, (X, CONTEXT), ANY, ANY),
    "one key": (MultiHeadAttention, (X, CONTEXT[:, :1]), None, None),
    "global, any mask": (GlobalSelfAttention, (X,), ANY_SELF, ANY_SELF),
    "causal": (CausalSelfAttention, (X,), None, TRIANGLE),
    "causal, any mask": (CausalSelfAttention, (X,), ANY_SELF, ANY_SELF & TRIANGLE),
    "CrossAttention": (CrossAttention, (X, CONTEXT), PADDING, PADDING),
}


def built(layer):
    """Builds a layer of any width, whether it has a context or not."""
    shape = (None, None, layer.d_model)
    if not layer.built:
        has_context = "context" in inspect.signature(layer.call).parameters
        layer.build(shape, shape) if has_context else layer.build(shape)
    return layer


@pytest.mark.parametrize(("kind", "inputs", "mask", "allowed"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_equals_the_papers_equation(kind, inputs, mask, allowed, in_graph, randomise):
    layer = randomise(built(kind(3, 12)))
    expected, expected_scores = numpy_transformer.attention(layer, inputs[0], inputs[-1], allowed)

    def call(*tensors):
        return layer(*tensors, attention_mask=mask, return_attention_scores=True)

    if in_graph:  # the lengths and the batch are unknown
        call = tf.function(call, input_signature=[tf.TensorSpec([None, None, 12])] * len(inputs))
    output, scores = call(*[tf.constant(x, "float32") for x in inputs])
    np.testing.assert_allclose(output, expected, atol=2e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=2e-6)
    np.testing.assert_array_equal(layer(*inputs, attention_mask=mask).shape, expected.shape)


# T = H = 3 and B = H = 3: a mask whose axes are taken for others broadcasts all the same.
SQUARE = RNG.normal(size=(3, 3, 12))
SELF_MASK = np.tri(3, dtype=bool)
PER_BATCH = np.stack([SELF_MASK, SELF_MASK[::-1, ::-1], np.eye(3, dtype=bool)])
PER_HEAD = PER_BATCH[None].repeat(3, axis=0)


@pytest.mark.parametrize(
    ("mask", "expanded"),
    [
        (SELF_MASK, SELF_MASK[None, None]),
        (SELF_MASK[:1], SELF_MASK[None, None, :1]),
        (PER_BATCH, PER_BATCH[:, None]),
        (PER_BATCH[:, :1], PER_BATCH[:, None, :1]),
        (SELF_MASK[None], SELF_MASK[None, None]),
        (PER_BATCH[:, None], PER_BATCH[:, None]),
        (PER_HEAD, PER_HEAD),
    ],
    ids=["(T, S)", "(1, S)", "(B, T, S)", "(B, 1, S)", "(1, T, S)", "(B, 1, T, S)", "(B, H, T, S)"],
)
def test_each_axis_of_a_mask_means_what_its_rank_says(mask, expanded, randomise):
    layer = randomise(built(CausalSelfAttention(3, 12)))
    _, weights = layer(SQUARE, attention_mask=mask, return_attention_scores=True)
    _, same = layer(SQUARE, attention_mask=mask.astype("int32"), return_attention_scores=True)
    np.testing.assert_array_equal(weights, same)
    allowed = np.broadcast_to(expanded, (3, 3, 3, 3)) & np.tri(3, dtype=bool)
    queries = allowed.any(axis=-1)  # others attend to everything
    np.testing.assert_array_equal((np.asarray(weights) > 1e-8)[queries], allowed[queries])


@pytest.mark.parametrize("shape", [(3, 4), (2, 4), (4,), (1, 2, 3, 5, 4), (3, 5, 4), (2, 2, 5, 4)])
def test_a_mask_that_does_not_fit_is_an_error(shape):
    with pytest.raises(ValueError, match="broadcast to the attention scores"):
        MultiHeadAttention(3, 12)(X, CONTEXT, attention_mask=np.ones(shape, bool))
    with pytest.raises(ValueError, match="broadcast to the attention scores"):
        Decoder([DecoderLayer(12, 3, 20)])(X, CONTEXT, cross_attention_mask=np.ones(shape, bool))


def test_a_float_mask_is_an_error():
    # It could be meant to be added to the scores.
    with pytest.raises(TypeError, match="must be bool or integer"):
        CrossAttention(3, 12)(X, CONTEXT, attention_mask=np.zeros((2, 5, 4), "float32"))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_attention_weights_sum_to_one_and_masked_ones_are_nothing(policy, randomise):
    layer = randomise(built(MultiHeadAttention(3, 12, dtype=policy)))
    _, scores = layer(X, CONTEXT, attention_mask=ANY, return_attention_scores=True)
    scores = np.asarray(tf.cast(scores, "float64"))
    # Weights in bfloat16 have 8 bits.
    tolerance = 1e-6 if policy == "float32" else 2e-2
    np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=tolerance)
    forbidden = np.broadcast_to(~ANY[:, None], scores.shape)
    assert forbidden.any() and scores[forbidden].max() < 1e-8
    assert scores[~forbidden].min() > 1e-8


def test_projections_start_with_glorots_limit_for_a_square_matrix():
    # Glorot & Bengio 2010: sqrt(6 / (fan in + fan out)) = sqrt(6 / 128), for each of the three.
    for layer in (MultiHeadAttention(4, 64), GlobalSelfAttention(4, 64)):
        for kernel in [v for v in built(layer).variables if v.name == "kernel"]:
            largest = np.abs(np.asarray(kernel)).max()
            assert 0.98 * np.sqrt(6 / 128) < largest <= np.sqrt(6 / 128)


DROPOUTS = {
    "sub-layers": lambda rate: EncoderLayer(12, 3, 20, rate, 0.0),
    "attention": lambda rate: EncoderLayer(12, 3, 20, 0.0, rate),
    "restricted attention": lambda rate: RestrictedSelfAttention(3, 12, 2, rate),
}


@pytest.mark.parametrize("make", DROPOUTS.values(), ids=DROPOUTS.keys())
def test_dropout_acts_in_training_only(make, randomise):
    keras.utils.set_random_seed(3)
    layer, plain = (randomise(built(make(rate))) for rate in (0.5, 0.0))
    for training in (False, None):
        np.testing.assert_array_equal(layer(X, training=training), plain(X))
    first, second = (np.asarray(layer(X, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


def test_each_dropout_has_its_rate_and_keeps_the_mean():
    keras.utils.set_random_seed(4)
    layer = DecoderLayer(12, 2, 8, dropout_rate=0.25, attention_dropout_rate=0.5)
    residuals = layer.self_residual, layer.cross_residual, layer.feed_forward_residual
    assert [residual.dropout.rate for residual in residuals] == [0.25] * 3
    assert [a.dropout.rate for a in (layer.self_attention, layer.cross_attention)] == [0.5] * 2
    x, output = np.zeros((50, 20, 12)), np.ones((50, 20, 12))
    np.testing.assert_array_equal(residuals[0].post(x, output, training=False), output)
    left = np.asarray(residuals[0].post(x, output, training=True))
    np.testing.assert_allclose(left[left != 0], 4 / 3, rtol=1e-6)
    # 12,000 positions, each dropped with probability 1/4: five deviations are 0.02.
    assert (left == 0).mean() == pytest.approx(0.25, abs=0.02)


def test_implicit_masks_are_passed_on_and_not_applied(recwarn):
    ids = np.array([[3, 1, 0, 0], [2, 5, 6, 0]])
    embedded = PositionalEmbedding(9, 12, mask_zero=True)(ids)
    unmasked = PositionalEmbedding(9, 12)
    encoder, decoder = Encoder([EncoderLayer(12, 3, 20)]), Decoder([DecoderLayer(12, 3, 20)])
    context = encoder(embedded)
    output = decoder(embedded, context)
    for tensor in (embedded, context, output):
        np.testing.assert_array_equal(keras.src.backend.get_keras_mask(tensor), ids != 0)
    plain = tf.identity(embedded)
    np.testing.assert_array_equal(decoder(plain, encoder(plain)), output)
    assert keras.src.backend.get_keras_mask(unmasked(ids)) is None
    assert not [str(each.message) for each in recwarn if "mask" in str(each.message)]
