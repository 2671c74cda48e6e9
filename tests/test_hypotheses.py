"""Tests of beam scores."""

import pytest
import tensorflow as tf

from tf_transformer.decoding import beam_score


def test_known_scores():
    ones = tf.ones([14])
    assert beam_score(ones, tf.range(14), 0.0).numpy().tolist() == [1.0] * 14
    assert beam_score(-6.0 * ones[:3], tf.constant([1, 7, 13]), 1.0).numpy().tolist() == [
        -6,
        -3,
        -2,
    ]
    for length_penalty in (0.2, 0.6, 1.0):
        assert float(beam_score(-1.0, 1, length_penalty)) == -1.0
    assert float(beam_score(-2.0, 19, 0.5)) == -1.0
    assert float(beam_score(-1.0, 19, tf.constant(0.6))) == pytest.approx(-(4**-0.6))


def test_a_missing_hypothesis_has_the_lowest_score():
    for length_penalty in (0.0, 0.6, 1.0):
        assert float(beam_score(float("-inf"), 3, length_penalty)) == float("-inf")
