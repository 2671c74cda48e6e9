"""Restricted self-attention: in blocks as under a mask, in time and memory of the length alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_transformer.layers.attention import GlobalSelfAttention
from tf_transformer.layers.masks import local_mask
from tf_transformer.layers.restricted_attention import RestrictedSelfAttention

RNG = np.random.default_rng(5)
# One position, shorter than the radius, one more, multiples of it and not.
SIZES = [(1, 1), (2, 3), (4, 3), (5, 1), (12, 4), (13, 4)]


def hidden_states(length):
    return tf.constant(RNG.normal(size=(2, length, 12)), "float32")


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
    def make(radius):
        layers = RestrictedSelfAttention(3, 12, radius), GlobalSelfAttention(3, 12)
        for layer in layers:
            layer.build((None, None, 12))
            randomise(layer)
        return layers

    return make


def masked(layer, x, mask, radius):
    """Attention over all positions under `local_mask`."""
    near = np.asarray(local_mask(x.shape[1], radius))
    if mask is not None:
        near = near & mask
    return layer(x, attention_mask=near, return_attention_scores=True)


def real(mask, length):
    """The queries to compare, (B, T): a padding query may have nothing near to attend to."""
    is_padding = mask is not None and mask.ndim == 3 and mask.shape[1] == 1
    return np.broadcast_to(mask[:, 0] if is_padding else True, (2, length))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("length", "radius"), SIZES)
def test_equals_attention_under_a_mask(mask, length, radius, pair):
    ours, theirs = pair(radius)
    x, mask = hidden_states(length), MASKS[mask](length)
    output, weights = ours(x, attention_mask=mask, return_attention_scores=True)
    expected, expected_weights = masked(theirs, x, mask, radius)
    rows = real(mask, length)
    np.testing.assert_allclose(output[rows], expected[rows], atol=1e-6)
    assert weights.shape == (2, 3, length, length)
    for found, wanted, queries in zip(weights, expected_weights, rows, strict=True):
        np.testing.assert_allclose(found.numpy()[:, queries], wanted.numpy()[:, queries], atol=1e-6)
    np.testing.assert_array_equal(ours(x, attention_mask=mask), output)
    assert np.isfinite(output).all(), "where there is nothing to attend to, too"


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_in_a_graph_the_lengths_may_be_unknown(jit, pair):
    ours, theirs = pair(4)
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


def test_no_tensor_grows_with_the_square_of_the_length(pair):
    """But those that are asked for."""
    restricted, unrestricted = pair(2)

    def largest(layer, length, **options):
        function = tf.function(functools.partial(layer, **options))
        graph = function.get_concrete_function(hidden_states(length)).graph
        shapes = [tensor.shape for node in graph.get_operations() for tensor in node.outputs]
        return max(shape.num_elements() or 0 for shape in shapes)

    assert largest(restricted, 400) == 2 * largest(restricted, 200)
    assert largest(unrestricted, 400) == 4 * largest(unrestricted, 200)
    scores = {"return_attention_scores": True}
    assert largest(restricted, 400, **scores) == 4 * largest(restricted, 200, **scores)
