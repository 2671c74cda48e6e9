"""The attention of recurrent models, against the papers' formulas, query by query."""

import keras
import numpy as np
import pytest
from numpy_recurrent import softmax

from tf_transformer.layers.recurrent_attention import (
    AdditiveAttention,
    DotAttention,
    GeneralAttention,
    PredictedWindow,
)

B, T, S, D, C = 3, 4, 6, 5, 7
LENGTHS = [6, 1, 3]
MASK = (np.arange(S) < np.array(LENGTHS)[:, None])[:, None]


def additive_score(layer, query, key):
    kernels = [np.asarray(weight) for weight in layer.weights]
    w, u, bias, v = kernels
    return (np.tanh(query @ w + key @ u + bias) @ v)[0]


LAYERS = {
    "additive": (lambda: AdditiveAttention(9), C, additive_score),
    "dot": (DotAttention, D, lambda layer, query, key: query @ key),
    "general": (
        GeneralAttention, C,
        lambda layer, query, key: query @ (key @ np.asarray(layer.weights[0])),
    ),
}  # fmt: skip
EVERY_SCORE = pytest.mark.parametrize("name", LAYERS)


def inputs(width, seed=0):
    rng = np.random.default_rng(seed)
    query = rng.normal(size=(B, T, D)).astype("float32")
    return query, rng.normal(size=(B, S, width)).astype("float32")


def check(attended, weights, context, expected_of):
    """Compares with weights of the visible positions alone; `expected_of(b, t)` returns these."""
    assert attended.shape == (B, T, context.shape[-1]) and weights.shape == (B, T, S)
    for b, length in enumerate(LENGTHS):
        for t in range(T):
            expected = expected_of(b, t)
            np.testing.assert_allclose(weights[b, t, :length], expected, atol=1e-5)
            np.testing.assert_allclose(attended[b, t], expected @ context[b, :length], atol=1e-5)
            np.testing.assert_array_equal(weights[b, t, length:], 0)


@EVERY_SCORE
def test_the_weights_are_the_softmax_of_the_score(name, randomise):
    make, width, score = LAYERS[name]
    layer, (query, context) = make(), inputs(width)
    layer.build(query.shape, context.shape)
    randomise(layer)
    attended, weights = layer(query, context, attention_mask=MASK, return_attention_scores=True)

    def expected_of(b, t):
        return softmax(np.array([score(layer, query[b, t], k) for k in context[b, : LENGTHS[b]]]))

    check(attended, weights, context, expected_of)
    keys = layer.project_keys(context)
    np.testing.assert_allclose(layer.attend(query, keys, context)[0], layer(query, context))


@EVERY_SCORE
def test_a_query_that_may_attend_to_nothing_gives_numbers(name):
    make, width, _ = LAYERS[name]
    query, context = inputs(width)
    for dtype in ("float32", "mixed_float16"):
        layer = make()
        layer = type(layer).from_config({**layer.get_config(), "dtype": dtype})
        attended = layer(query, context, attention_mask=np.zeros((B, 1, S), bool))
        assert np.isfinite(np.asarray(attended)).all()


@pytest.mark.parametrize("window", [1, 10])
@EVERY_SCORE
def test_local_attention_is_a_softmax_in_the_window_times_a_gaussian(name, window, randomise):
    make, width, score = LAYERS[name]
    query, context = inputs(width, seed=window)
    layer, local = make(), PredictedWindow(window, 8)
    for part in (layer, local):
        part.build(query.shape, context.shape)
        randomise(part, seed=window)
    factors = local(query, context, attention_mask=MASK)
    attended, weights = layer(
        query, context, attention_mask=MASK, position_weights=factors, return_attention_scores=True
    )
    hidden, centre = (np.asarray(weight) for weight in local.weights)
    sizes = set()

    def expected_of(b, t):
        length = LENGTHS[b]
        p = length / (1 + np.exp(-(np.tanh(query[b, t] @ hidden) @ centre)[0]))
        inside = [s for s in range(length) if p - window <= s <= p + window]
        sizes.add(len(inside))
        expected = np.zeros(length)
        expected[inside] = softmax(
            np.array([score(layer, query[b, t], context[b, s]) for s in inside])
        )
        return expected * np.exp(-((np.arange(length) - p) ** 2) / (2 * (window / 2) ** 2))

    check(attended, weights, context, expected_of)
    assert min(sizes) >= 1 and max(sizes) <= 2 * window + 1


def test_the_window_is_exact_far_into_a_long_source_in_bfloat16():
    context = np.zeros((1, 900, C))
    exact = PredictedWindow(1, 8)
    local = PredictedWindow(1, 8, dtype="mixed_bfloat16")
    for layer in (exact, local):
        layer.build((1, 1, D), context.shape)
        layer.centre.kernel.assign(np.zeros((8, 1)))  # the centre is position 450
    query = np.ones((1, 1, D))
    factors = np.asarray(keras.ops.cast(local(query, context), "float32"))
    assert np.flatnonzero(factors).tolist() == [449, 450, 451] and factors.max() == 1
    np.testing.assert_allclose(factors, exact(query, context), atol=1e-3)
