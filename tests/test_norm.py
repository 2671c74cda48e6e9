"""Layer normalisation: in training, its output and gradients are those of Keras' layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_transformer.layers.norm import LayerNorm

RANDOM = np.random.default_rng(0)


def results_of(layer, x, given, training, in_graph):
    """The output of a layer, and the gradients of its input and its weights."""

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, training=True) if training else layer(x)
            weighted = tf.reduce_sum(tf.cast(output, "float64") * given)
        variables = [weight.value for weight in layer.trainable_weights]
        return output, *tape.gradient(weighted, [x, *variables])

    return (tf.function(run) if in_graph else run)(x)


@pytest.mark.parametrize("shape", [(7, 12), (3, 4, 12)])
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("policy", "atol"), [("float32", 1e-5), ("float64", 1e-12), ("mixed_bfloat16", 0.05)]
)
def test_output_and_gradients_are_those_of_keras(shape, in_graph, policy, atol):
    layer = LayerNorm(epsilon=1e-6, dtype=policy)
    expected = keras.layers.LayerNormalization(epsilon=1e-6, dtype=policy)
    values = RANDOM.normal(size=shape) * 3 + 1
    x = tf.constant(values, layer.compute_dtype)
    for each in (layer, expected):
        each.build(shape)
    weights = [RANDOM.normal(size=12) for _ in range(2)]
    layer.set_weights(weights)
    expected.set_weights(weights)
    given = RANDOM.normal(size=shape)
    found = results_of(layer, x, given, True, in_graph)
    for ours, theirs in zip(found, results_of(expected, x, given, False, in_graph), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        scale = float(tf.reduce_max(tf.abs(tf.cast(theirs, "float64"))))
        np.testing.assert_allclose(
            tf.cast(ours, "float64"), tf.cast(theirs, "float64"), atol=atol * scale
        )


def test_outside_of_training_it_is_keras_layer():
    layer = LayerNorm(epsilon=1e-6)
    x = tf.constant(RANDOM.normal(size=(3, 4, 12)), "float32")
    plain = keras.layers.LayerNormalization(epsilon=1e-6)
    np.testing.assert_array_equal(layer(x), plain(x))
