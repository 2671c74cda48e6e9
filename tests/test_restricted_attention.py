"""Restricted self-attention: in blocks as under a mask, and a position at a time."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_transformer.layers import (
    CausalSelfAttention,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    GlobalSelfAttention,
    RestrictedCausalSelfAttention,
    RestrictedSelfAttention,
    local_mask,
)
from tf_transformer.layers.decoding_step import DecodingStep

RNG = np.random.default_rng(5)
KINDS = {
    "encoder": (RestrictedSelfAttention, GlobalSelfAttention),
    "decoder": (RestrictedCausalSelfAttention, CausalSelfAttention),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
# Shorter than the radius, as long, one more, multiples of it and not.
SIZES = [(1, 1), (2, 3), (3, 3), (4, 3), (5, 1), (6, 3), (11, 4), (12, 4), (13, 4)]


def hidden_states(length, batch_size=2):
    return tf.constant(RNG.normal(size=(batch_size, length, 12)), "float32")


def padding(length):
    """The second row has two tokens only, so that whole blocks are padding."""
    return np.array([[[True] * length], [([True] * 2 + [False] * length)[:length]]])


def any_mask(*shape):
    """A mask under which each position may attend to itself, or there is nothing to compare."""
    return (RNG.random(shape) < 0.5) | np.eye(shape[-1], dtype=bool)


MASKS = {
    "none": lambda length: None,
    "padding": padding,
    "(T, T)": lambda length: any_mask(length, length),
    "(B, T, T)": lambda length: any_mask(2, length, length),
    "(B, H, T, T)": lambda length: any_mask(2, 3, length, length),
    "(1, 1)": lambda length: np.ones((1, 1), bool),
}


@pytest.fixture(scope="module")
def pair(randomise):
    """A restricted layer and an unrestricted one with the same random weights."""

    @functools.cache
    def make(kind, radius, dtype="float32"):
        restricted, unrestricted = KINDS[kind]
        ours, theirs = restricted(3, 12, radius, dtype=dtype), unrestricted(3, 12, dtype=dtype)
        for layer in (ours, theirs):
            layer.build((None, None, 12))
            randomise(layer)
        return ours, theirs

    return make


def masked(layer, x, mask, radius):
    """Attention over all positions under `local_mask`."""
    near = np.asarray(local_mask(x.shape[1], radius))
    if mask is not None:
        near = near & mask
    return layer(x, attention_mask=near, return_attention_scores=True)


def real(mask, length):
    """The queries to compare, (B, T): a padding query may have nothing near to attend to."""
    return np.broadcast_to(mask[:, 0] if mask is not None and mask.ndim == 3 and
                           mask.shape[1] == 1 else True, (2, length))  # fmt: skip


@EVERY_KIND
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("length", "radius"), SIZES)
def test_equals_attention_under_a_mask(kind, mask, length, radius, pair):
    ours, theirs = pair(kind, radius)
    x, mask = hidden_states(length), MASKS[mask](length)
    output, weights = ours(x, attention_mask=mask, return_attention_scores=True)
    expected, expected_weights = masked(theirs, x, mask, radius)
    rows = real(mask, length)
    np.testing.assert_allclose(output[rows], expected[rows], atol=1e-6)
    assert weights.shape == (2, 3, length, length)
    for row, queries in enumerate(rows):
        np.testing.assert_allclose(
            np.asarray(weights)[row, :, queries],
            np.asarray(expected_weights)[row, :, queries],
            atol=1e-6,
        )
    np.testing.assert_array_equal(ours(x, attention_mask=mask), output)


@EVERY_KIND
def test_gradients_equal_those_under_a_mask(kind, pair):
    ours, theirs = pair(kind, 4)
    x, mask = hidden_states(11), padding(11)
    wanted = np.where(real(mask, 11)[..., None], RNG.normal(size=x.shape), 0).astype("float32")

    def gradients(layer, call):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(call() * wanted)
        return tape.gradient(total, [x, *layer.trainable_variables])

    found = gradients(ours, lambda: ours(x, attention_mask=mask))
    expected = gradients(theirs, lambda: masked(theirs, x, mask, 4)[0])
    for ours_part, theirs_part in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours_part, theirs_part, atol=1e-5)


@EVERY_KIND
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_in_a_graph_the_lengths_may_be_unknown(kind, jit, pair):
    ours, theirs = pair(kind, 4)
    specs = [tf.TensorSpec([None, None, 12]), tf.TensorSpec([None, None, None], tf.bool)]

    @tf.function(input_signature=specs, jit_compile=jit)
    def call(x, mask):
        return ours(x, attention_mask=mask, return_attention_scores=True)

    for length in (2, 4, 9):
        for mask in (padding(length), any_mask(2, length, length)):
            x, rows = hidden_states(length), real(mask, length)
            expected, _ = masked(theirs, x, mask, 4)
            output, weights = call(x, mask)
            np.testing.assert_allclose(output[rows], expected[rows], atol=2e-6)
            assert weights.shape == (2, 3, length, length)


@EVERY_KIND
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_low_precision_is_finite_and_near_float32(kind, policy, pair):
    exact, layer = pair(kind, 3)[0], pair(kind, 3, policy)[0]
    x = hidden_states(7)
    nothing = np.zeros((2, 1, 7), bool)  # nothing to attend to
    assert np.isfinite(tf.cast(layer(x, attention_mask=nothing), "float32")).all()
    expected = np.asarray(exact(x))
    error = np.abs(np.asarray(tf.cast(layer(x), "float32")) - expected).max()
    assert error < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("radius", [1, 3, 20])
@pytest.mark.parametrize("num_steps", [None, 9], ids=["growing", "fixed"])
@pytest.mark.parametrize("beam_size", [None, 2])
def test_a_position_at_a_time_equals_the_whole(radius, num_steps, beam_size, pair):
    layer, _ = pair("decoder", radius)
    x = hidden_states(9)
    whole = layer(x)
    constants, target = {}, {}
    slots = (num_steps or 0) * (beam_size or 1)
    if num_steps:
        constants["steps"] = tf.range(num_steps)
    if beam_size:
        constants["beams"] = tf.range(beam_size)
        target["ancestors"] = tf.zeros((2 * beam_size, num_steps or 0), tf.int32)
    keys, values = layer.start_decoding(slots, batch_size=2)
    for index in range(9):
        rows = tf.repeat(x[:, index], beam_size or 1, axis=0)
        step = DecodingStep.at(index, constants, target, "float32")
        target = {"ancestors": step.ancestors}
        output, keys, values = layer.decode_step(rows, keys, values, step)
        expected = tf.repeat(whole[:, index], beam_size or 1, axis=0)
        np.testing.assert_allclose(output, expected, atol=1e-5)
    kept = num_steps or min(9, radius + 1)
    assert keys.shape == values.shape == (2, 3, kept * (beam_size or 1), 4)


def largest_tensor(function, *inputs):
    """The most elements of a tensor that a graph computes."""
    graph = tf.function(function).get_concrete_function(*inputs).graph
    shapes = [tensor.shape for node in graph.get_operations() for tensor in node.outputs]
    return max(shape.num_elements() or 0 for shape in shapes)


@pytest.mark.parametrize(
    ("stack", "inputs"),
    [
        (lambda **k: Encoder([EncoderLayer(12, 3, 12, **k)]), 1),
        (lambda **k: Decoder([DecoderLayer(12, 3, 12, **k)]), 2),
    ],
    ids=["encoder", "decoder"],
)
def test_no_tensor_grows_with_the_square_of_the_length(stack, inputs):
    """But those that are asked for."""
    restricted, unrestricted = stack(attention_radius=2), stack()

    def largest(layer, length, **options):
        others = [hidden_states(1)] * (inputs - 1)
        call = functools.partial(layer, **options)
        return largest_tensor(call, hidden_states(length), *others)

    assert largest(restricted, 400) == 2 * largest(restricted, 200)
    assert largest(unrestricted, 400) == 4 * largest(unrestricted, 200)
    scores = {"return_attention_scores": True}
    assert largest(restricted, 400, **scores) == 4 * largest(restricted, 200, **scores)


@pytest.mark.parametrize("radius", [0, -1])
@EVERY_KIND
def test_a_radius_without_a_neighbour_is_an_error(kind, radius):
    with pytest.raises(ValueError, match=f"radius must be at least 1.*radius={radius}"):
        KINDS[kind][0](3, 12, radius)
