"""Tests of the output projection and of the statistics of labels."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_transformer.layers.output import OutputProjection, OutputTransform
from tf_transformer.training.token_statistics import token_statistics

RNG = np.random.default_rng(4)
BATCH, LENGTH, D_MODEL, VOCAB_SIZE = 3, 5, 4, 7
HIDDEN = RNG.normal(size=(BATCH, LENGTH, D_MODEL)).astype("float32")
KERNEL = RNG.normal(size=(D_MODEL, VOCAB_SIZE)).astype("float32")
BIAS = RNG.normal(size=VOCAB_SIZE).astype("float32")
LABELS = np.array([[1, 5, 2, 0, 0], [4, 0, 0, 0, 0], [3, 6, 1, 2, 5]], "int32")
# Functions of the statistics, such as the loss; the last has no gradient.
UPSTREAM = RNG.normal(size=(BATCH, LENGTH, 3)).astype("float32")


def plain_statistics(labels, logits, pad_id):
    """The definition, for automatic differentiation, in float64."""
    log_probabilities = tf.nn.log_softmax(tf.cast(logits, "float64"))
    is_label = tf.one_hot(labels, VOCAB_SIZE, dtype="float64")
    is_other = (1 - is_label) * (np.arange(VOCAB_SIZE) != pad_id)
    of_others = tf.reduce_sum(is_other * log_probabilities, -1) / (VOCAB_SIZE - 2)
    of_label = tf.reduce_sum(is_label * log_probabilities, -1)
    is_best = tf.cast(tf.argmax(logits, -1, "int32") == labels, "float64")
    real = tf.cast(labels != pad_id, "float64")
    return tf.stack([of_label, of_others, is_best], -1) * real[..., None]


def with_gradients(function, *tensors):
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        statistics = function(*tensors)
        total = tf.reduce_sum(statistics * tf.cast(UPSTREAM, statistics.dtype))
    return [statistics, *tape.gradient(total, tensors)]


@pytest.mark.parametrize(("pad_id", "wrap"), [(0, lambda function: function), (3, tf.function)])
def test_statistics_and_their_gradients_are_what_their_definition_says(pad_id, wrap):
    logits = HIDDEN @ KERNEL

    def ours(logits):
        return token_statistics(LABELS, logits, pad_id)

    def plain(logits):
        return plain_statistics(LABELS, logits, pad_id)

    found = wrap(with_gradients)(ours, logits)
    assert found[0].dtype == "float32" and 0 < np.mean(found[0][..., 2]) < 1
    for ours, expected in zip(found, with_gradients(plain, logits), strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-6)


@pytest.mark.parametrize("has_transform", [False, True])
@pytest.mark.parametrize(
    ("tied", "tied_bias"), [(True, False), (True, True), (False, False)], ids=str
)
def test_output_projection_round_trip(tied, tied_bias, has_transform, randomise):
    embedding = keras.layers.Embedding(VOCAB_SIZE, D_MODEL) if tied else None
    transform = OutputTransform(D_MODEL) if has_transform else None
    layer = OutputProjection(VOCAB_SIZE, embedding, tied_bias, transform, name="output")
    layer.build((None, None, D_MODEL))
    randomise(layer)
    twin = OutputProjection.from_config(layer.get_config())
    twin.build((None, None, D_MODEL))
    twin.set_weights(layer.get_weights())
    number = (1 if tied and not tied_bias else 2) + 4 * has_transform
    assert twin.name == "output" and len(twin.weights) == number
    np.testing.assert_array_equal(twin(HIDDEN), layer(HIDDEN))
    np.testing.assert_allclose(layer(HIDDEN[:, 0]), layer(HIDDEN)[:, 0], atol=1e-6)
