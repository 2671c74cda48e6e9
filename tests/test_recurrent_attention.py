"""The attention of recurrent models as layers; the models' test compares them with the papers."""

import keras
import numpy as np
import pytest

from tf_transformer.layers.recurrent_attention import (
    AdditiveAttention,
    DotAttention,
    GeneralAttention,
    PredictedWindow,
)

RNG = np.random.default_rng(0)
QUERY, CONTEXT = (RNG.normal(size=(3, length, 5)).astype("float32") for length in (4, 6))
LENGTHS = [6, 1, 3]
MASK = (np.arange(6) < np.array(LENGTHS)[:, None])[:, None]


@pytest.mark.parametrize("make", [lambda: AdditiveAttention(9), DotAttention, GeneralAttention])
def test_masked_positions_are_as_if_they_were_not_there(make, randomise):
    layer, local = make(), PredictedWindow(1, 8)
    for each in (layer, local):
        each.build(QUERY.shape, CONTEXT.shape)
        randomise(each)
    factors = np.asarray(local(QUERY, CONTEXT, attention_mask=MASK))
    options = {"position_weights": factors, "return_attention_scores": True}
    output, weights = layer(QUERY, CONTEXT, attention_mask=MASK, **options)
    for row, length in enumerate(LENGTHS):
        rows = slice(row, row + 1)
        inputs = QUERY[rows], CONTEXT[rows, :length]
        expected = layer(*inputs, position_weights=factors[rows, :, :length])
        np.testing.assert_allclose(output[row], expected[0], atol=1e-6)
        np.testing.assert_array_equal(weights[row, :, length:], 0)
    nothing = layer(QUERY, CONTEXT, attention_mask=np.zeros((3, 1, 6), bool))
    assert np.isfinite(nothing).all()


def test_the_window_is_exact_far_into_a_long_source_in_bfloat16():
    context, query = np.zeros((1, 900, 7)), np.ones((1, 1, 5))
    layers = [PredictedWindow(1, 8), PredictedWindow(1, 8, dtype="mixed_bfloat16")]
    for layer in layers:
        layer.build(query.shape, context.shape)
        layer.centre.kernel.assign(np.zeros((8, 1)))  # the centre is position 450
    exact, factors = (
        np.asarray(keras.ops.cast(layer(query, context), "float32")) for layer in layers
    )
    assert np.flatnonzero(factors).tolist() == [449, 450, 451] and factors.max() == 1
    np.testing.assert_allclose(factors, exact, atol=1e-3)
