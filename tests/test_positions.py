"""Tests of sinusoidal positions and of the embedding that adds them."""

import numpy as np
import pytest
import tensorflow as tf
from numpy_transformer import sinusoids as paper_positions

from tf_transformer.layers.positions import (
    SINUSOIDS,
    PositionalEmbedding,
    sinusoidal_positions,
    token_embedding,
)

IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 0]])


@pytest.mark.parametrize(
    ("depth", "layout"), [(2, SINUSOIDS[0]), (128, SINUSOIDS[0]), *((20, s) for s in SINUSOIDS)]
)
def test_equals_the_formula_of_the_paper_or_of_another_engine(depth, layout):
    table = np.asarray(sinusoidal_positions(5001, depth, sinusoids=layout))
    np.testing.assert_allclose(table[:100], paper_positions(range(100), depth, layout), atol=2e-5)
    # Angles are float32, whose rounding error at 5,000 is at most 2.4e-4.
    far = [511, 512, 4999, 5000]
    np.testing.assert_allclose(table[far], paper_positions(far, depth, layout), atol=1e-3)


def test_offset_is_a_slice_of_the_longer_table():
    table = np.asarray(sinusoidal_positions(50, 16))
    part = sinusoidal_positions(8, 16, offset=tf.constant(37))
    np.testing.assert_allclose(part, table[37:45], atol=1e-6)


@pytest.mark.parametrize(("dtype", "rounding"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_low_precision_rounds_the_values_and_not_the_angles(dtype, rounding):
    table = sinusoidal_positions(1000, 16, dtype=dtype)
    assert table.dtype == dtype
    values = np.asarray(tf.cast(table, "float32"))
    np.testing.assert_allclose(values, paper_positions(range(1000), 16), atol=rounding)


def test_a_sentence_longer_than_the_table_is_an_error():
    layer = PositionalEmbedding(10, 6, position_embedding=token_embedding(4, 6))
    with pytest.raises(ValueError, match="learned 4 positions; received token_ids of length 5"):
        layer(IDS)
    assert layer(IDS[:, :4]).shape == (2, 4, 6)


def test_initial_deviation_is_one_over_the_root_of_the_width():
    # 128,000 samples: the standard error of the deviation is 0.2 %.
    layer = PositionalEmbedding(2000, 64)
    layer.build((None, None))
    assert np.std(np.asarray(layer.embedding.embeddings)) == pytest.approx(1 / 8, rel=0.02)
