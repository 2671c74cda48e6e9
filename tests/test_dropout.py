"""Dropout: how much is dropped, and that each device draws its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_transformer.layers.dropout import Dropout


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9999])
@pytest.mark.parametrize("width", [64, 31])
def test_a_share_is_dropped_and_the_rest_is_scaled_up(width, rate, policy):
    layer = Dropout(rate, seed=3, dtype=policy)
    found = np.asarray(
        tf.cast(layer(np.ones((40, 50, width), "float32"), training=True), "float32")
    )
    # Six standard errors of so many draws, and the rate is a multiple of 2^-16.
    tolerance = 6 * np.sqrt(rate * (1 - rate) / found.size) + 2**-16
    assert np.mean(found == 0) == pytest.approx(rate, abs=tolerance)
    assert found.max() == pytest.approx(1 / (1 - rate), rel=0.25 if rate > 0.99 else 4e-3)
    assert set(np.unique(found)) == {0, found.max()}


@pytest.mark.parametrize("shape", [(0, 5, 6), (3, 0, 6), (0, 7)])
def test_nothing_is_dropped_of_nothing(shape):
    # As on a replica that gets no sentence of a batch.
    layer = Dropout(0.5, seed=3)
    signature = [tf.TensorSpec([None] * len(shape))]
    dropped = tf.function(lambda x: layer(x, training=True), input_signature=signature)
    assert dropped(tf.zeros(shape)).shape == layer(tf.zeros(shape), training=True).shape == shape


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_out_of_range_is_an_error(rate):
    with pytest.raises(ValueError, match=f"rate={rate}"):
        Dropout(rate)


def test_neighbours_and_calls_are_dropped_independently():
    # Two numbers share the 32 bits of one draw.
    layer = Dropout(0.5, seed=3)
    first, second = (np.asarray(layer(np.ones((1000, 64)), training=True)) for _ in range(2))
    for one, other in [
        (first[:, ::2], first[:, 1::2]), (first[:, 1:], first[:, :-1]), (first[1:], first[:-1]),
        (first, second),
    ]:  # fmt: skip
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_gradients_pass_where_numbers_do(wrap):
    layer = Dropout(0.3, seed=1)
    inputs = tf.ones((5, 7, 9))

    @wrap
    def outputs_and_gradients(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
        return outputs, tape.gradient(outputs, inputs)

    outputs, gradients = outputs_and_gradients(inputs)
    np.testing.assert_array_equal(outputs, gradients)
    np.testing.assert_array_equal(layer(inputs), inputs)


def test_the_same_seed_drops_the_same_and_a_config_round_trip_keeps_it():
    layer = Dropout(0.4, seed=5, name="mine")
    twin = Dropout.from_config(layer.get_config())
    assert (twin.name, twin.rate, twin.seed) == ("mine", 0.4, 5)
    ones = np.ones((3, 8), "float32")
    np.testing.assert_array_equal(layer(ones, training=True), twin(ones, training=True))
    assert isinstance(keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)), Dropout)  # fmt: skip


# TensorFlow makes its devices once a process, so this needs one of its own.
TWO_DEVICES = """
import json, keras, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_transformer as tt
from tf_transformer.training.checkpoints import seeds_of
from tf_transformer.training.distribution import separate_seeds

def draws(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tt.Transformer(tt.TransformerConfig(
            20, 20, num_layers=1, d_model=16, num_heads=2, d_ff=32, dropout_rate=0.5))
    before = [v.numpy().tolist() for v in seeds_of(model)]
    separate_seeds(model)
    assert [v.numpy().tolist() for v in seeds_of(model)] == before, "what a checkpoint has"
    ids = tf.fill([3, 5], 7)

    @tf.function
    def draw():
        return model({"source_ids": ids, "target_ids": ids}, training=True)

    logits = [strategy.experimental_local_results(strategy.run(draw)) for _ in range(2)]

    def states():
        return [[s.numpy().tolist() for s in strategy.experimental_local_results(v.value)]
                for v in seeds_of(model)]

    stood = states()
    for variable in seeds_of(model):
        variable.assign(variable.numpy())  # as a checkpoint restores it
    separate_seeds(model)
    assert states() == stood, "a run goes on as it would have"
    return [[replica.numpy().tolist() for replica in replicas] for replicas in logits]

two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print(json.dumps([draws(two), draws(tf.distribute.get_strategy())]))
"""


@pytest.fixture(scope="module")
def logits(result_of):
    """Of two calls, on two devices and on one."""
    return result_of(TWO_DEVICES)


def test_each_replica_draws_its_own(logits):
    (first, other), (first_again, other_again) = logits[0]
    assert first != other
    assert first_again not in (first, other) and other_again not in (first, other, first_again)


def test_the_first_replica_draws_what_one_device_draws(logits):
    for on_two, on_one in zip(*logits, strict=True):
        assert on_two[0] == on_one[0]
