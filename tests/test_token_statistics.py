"""Tests of the output projection and of statistics of labels, from all logits or in parts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.layers.output import (
    OutputProjection,
    OutputTransform,
    projected_token_statistics,
    token_statistics,
)

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


# 15 tokens of 7 logits: one token at a time, 4 parts, 2 parts with the last incomplete, 1 part.
@pytest.mark.parametrize(
    ("logits_at_once", "weights", "wrap"),
    [(1, [KERNEL, BIAS], tf.function), (28, [KERNEL], tf.function),
     (60, [KERNEL, BIAS], tf.function), (60, [KERNEL], lambda function: function),
     (10_000, [KERNEL, BIAS], tf.function)],
)  # fmt: skip
def test_projected_statistics_are_those_of_the_product(logits_at_once, weights, wrap):

    def projected(hidden, kernel, bias=None):
        return projected_token_statistics(LABELS, hidden, kernel, bias, 3, logits_at_once)

    def product(hidden, kernel, bias=0.0):
        return token_statistics(LABELS, tf.einsum("btd,dv->btv", hidden, kernel) + bias, 3)

    found = wrap(with_gradients)(projected, HIDDEN, *weights)
    expected = with_gradients(product, HIDDEN, *weights)
    assert len(found) == len(weights) + 2
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-6)


@pytest.mark.parametrize("has_transform", [False, True])
@pytest.mark.parametrize(
    ("tied", "tied_bias"), [(True, False), (True, True), (False, False)], ids=str
)
def test_output_projection_round_trip(tied, tied_bias, has_transform, randomise):
    embedding = keras.layers.Embedding(VOCAB_SIZE, D_MODEL) if tied else None
    transform = OutputTransform(D_MODEL) if has_transform else None
    layer = OutputProjection(VOCAB_SIZE, 3, embedding, tied_bias, transform, name="output")
    layer.build((None, None, D_MODEL))
    randomise(layer)
    twin = OutputProjection.from_config(layer.get_config())
    twin.build((None, None, D_MODEL))
    twin.set_weights(layer.get_weights())
    number = (1 if tied and not tied_bias else 2) + 4 * has_transform
    assert twin.name == "output" and len(twin.weights) == number
    np.testing.assert_array_equal(twin(HIDDEN), layer(HIDDEN))
    np.testing.assert_allclose(
        twin(HIDDEN, LABELS), token_statistics(LABELS, layer(HIDDEN), 3), atol=2e-6
    )
    np.testing.assert_allclose(layer(HIDDEN[:, 0]), layer(HIDDEN)[:, 0], atol=1e-6)


MEMORY_SCRIPT = """
import json
import tensorflow as tf
from tf_transformer.layers.output import projected_token_statistics

kernel = tf.ones((16, 16384))

def peak():
    # Not getrusage: a process inherits that from the one that started it.
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

def growth(logits_at_once):
    @tf.function(input_signature=[tf.TensorSpec((64, None), tf.int32)])
    def step(labels):
        hidden = tf.ones((64, tf.shape(labels)[1], 16))
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            statistics = projected_token_statistics(labels, hidden, kernel, None, 0, logits_at_once)
        return tape.gradient(statistics, kernel)

    step(tf.ones((64, 1), tf.int32))
    before = peak()
    step(tf.ones((64, 64), tf.int32))
    return peak() - before

print(json.dumps([growth(2**20), growth(2**30)]))
"""


@pytest.mark.slow
def test_few_logits_are_in_memory_at_a_time(result_of):
    # All logits are 256 MiB, of which a step needs two or more; 2^20 of them are 4.
    few, all_of_them = result_of(MEMORY_SCRIPT)
    assert few <= 120 < 256 <= all_of_them <= 1024


@pytest.mark.slow
def test_training_on_statistics_is_training_on_logits():
    sizes = dict(num_layers=1, d_model=16, num_heads=2, d_ff=32, dropout_rate=0.0)
    ids = RNG.integers(4, 40, (6, 8, 9))
    weights, logs = [], []
    for chunked in (False, True):
        keras.utils.set_random_seed(3)
        model = tt.Transformer(tt.TransformerConfig(40, 40, **sizes))
        loss, *metrics = (
            measure(from_statistics=chunked)
            for measure in (tt.SmoothedCrossEntropy, tt.Perplexity, tt.TokenAccuracy)
        )
        model.compile(tt.GradientAccumulation(tt.Adam(0.01), 2), loss, metrics=metrics)
        inputs = {"source_ids": ids, "target_ids": ids[..., :-1]}
        inputs = {**inputs, "labels": ids[..., 1:]} if chunked else inputs
        data = tf.data.Dataset.from_tensor_slices((inputs, ids[..., 1:]))
        history = model.fit(data, validation_data=data.take(2), shuffle=False, verbose=0).history
        weights.append(np.concatenate([np.ravel(w) for w in model.get_weights()]))
        logs.append({name: values[0] for name, values in history.items()})
    # The learning rate is 0.01, so weights have moved a thousand times as far.
    np.testing.assert_allclose(weights[1], weights[0], atol=5e-5)
    assert logs[1] == pytest.approx(logs[0], rel=1e-4)
    assert set(logs[0]) >= {"loss", "accuracy", "perplexity", "val_loss", "val_perplexity"}
