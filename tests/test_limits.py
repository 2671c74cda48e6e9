"""Tests of the limits of translations."""

import tensorflow as tf

from tf_transformer.decoding import output_limits


def test_a_limit_is_twice_the_source_length_plus_ten_up_to_the_maximum():
    limits = output_limits(tf.constant([0, 1, 7, 59, 60]), 128)
    assert limits.dtype == tf.int32
    assert limits.numpy().tolist() == [10, 12, 24, 128, 128]
    assert output_limits(tf.constant([3]), 5).numpy().tolist() == [5]
    assert output_limits(tf.zeros([0], tf.int32), 40).shape == (0,)
    # The ratio of target and source is an argument.
    assert output_limits(tf.constant([1, 3, 10]), 50, 4.5).numpy().tolist() == [14, 23, 50]
