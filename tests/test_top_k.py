"""Tests of the fast top-k functions against `tf.math.top_k`."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from step_models import NEG_INF

from tf_transformer.decoding.top_k import blockwise_top_k, iterative_top_k


@given(
    size=st.sampled_from([8000, 7999, 512, 1000, 37000, 7993, 9]),
    top_k=st.sampled_from([tf.math.top_k, iterative_top_k]),
    k=st.integers(1, 20),
    spread=st.sampled_from([0.1, 2.0, 4.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_fast_top_k_equals_the_original(size, top_k, k, spread, seed):
    k = min(k, size)
    # Large values are rare, so that equal values also lie in blocks with unequal maxima.
    values = np.floor(np.random.default_rng(seed).normal(scale=spread, size=(3, size)))
    values = values.astype("float32")
    values[2, seed % size :] = NEG_INF
    found = blockwise_top_k(tf.constant(values), k, top_k)
    expected = tf.math.top_k(values, k)
    assert found[0].numpy().tolist() == expected[0].numpy().tolist()
    assert found[1].numpy().tolist() == expected[1].numpy().tolist()
