"""Tests of the limits of translations."""

import pytest
import tensorflow as tf

from tf_transformer.decoding import output_limits


@pytest.mark.parametrize(
    ("source_length", "max_length", "limit"),
    [(0, 128, 10), (1, 128, 12), (7, 128, 24), (59, 128, 128), (60, 128, 128), (3, 5, 5)],
)
def test_a_limit_is_twice_the_source_length_plus_ten_up_to_the_maximum(
    source_length, max_length, limit
):
    assert output_limits(tf.constant([source_length]), max_length).numpy().tolist() == [limit]


def test_each_sentence_has_its_own_limit():
    limits = output_limits(tf.constant([1, 20, 3]), 40)
    assert limits.dtype == tf.int32
    assert limits.numpy().tolist() == [12, 40, 16]
    assert output_limits(tf.constant([1]), 40).numpy().tolist() == [12]
    assert output_limits(tf.zeros([0], tf.int32), 40).shape == (0,)


def test_the_ratio_of_target_and_source_is_an_argument():
    lengths = tf.constant([1, 3, 10])
    assert output_limits(lengths, 50, 4.5).numpy().tolist() == [14, 23, 50]
