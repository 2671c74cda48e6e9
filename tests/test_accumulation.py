"""Accumulated gradients: one update for each group of batches, and no stop within a group."""

import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.training import stopping


def test_gradients_are_averaged_over_a_group_and_updates_counted():
    variable = keras.Variable([0.0])
    schedule = tt.NoamSchedule(16, warmup_steps=100)
    optimizer = tt.GradientAccumulation(keras.optimizers.SGD(schedule), 3)
    reached = []
    for gradient in (1.0, 2.0, 6.0, 5.0, 1.0, 0.0, 9.0):
        optimizer.apply([tf.constant([gradient])], [variable])
        reached.append(float(variable.numpy()[0]))
    first = -3.0 * float(schedule(0))  # the mean of 1, 2 and 6
    second = first - 2.0 * float(schedule(1))
    expected = [0, 0, first, first, first, second, second]
    assert reached == pytest.approx(expected, rel=1e-5)
    assert int(optimizer.iterations) == 2
    assert float(optimizer.learning_rate) == float(schedule(2))


def test_config_round_trip():
    optimizer = tt.GradientAccumulation(keras.optimizers.SGD(0.25, momentum=0.5), 4)
    twin = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert (twin.steps, twin.inner_optimizer.momentum) == (4, 0.5)
    assert twin.get_config() == optimizer.get_config()


def test_a_group_with_an_overflow_is_dropped():
    variable = keras.Variable([0.0])
    inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
    optimizer = tt.GradientAccumulation(inner, 2)
    for gradient in (np.inf, 8.0, 8.0, 24.0):
        optimizer.apply([tf.constant([gradient])], [variable])
    # The overflow halves the scale to 4: the second group is (2 + 6) / 2.
    assert float(variable.numpy()[0]) == -4.0
    assert int(optimizer.iterations) == 1


# Keras runs a step for the end of the data where it does not know how many there are.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    "make",
    [
        lambda: tt.GradientAccumulation(keras.optimizers.SGD(0.1), 2),
        lambda: tt.GradientAccumulation(tt.Adam(0.1, weight_decay=0.5), 2),
        lambda: tt.Adam(0.1, weight_decay=0.5),
        lambda: tt.Adam(0.1, global_clipnorm=0.01),
    ],
    ids=["accumulation", "accumulation of ours", "decay", "clipping"],
)
@pytest.mark.parametrize("xla", [False, True])
def test_the_end_of_data_of_unknown_size_is_no_step(make, xla):
    known = tf.data.Dataset.from_tensor_slices(([[1.0], [2.0], [3.0], [4.0]], [3.0, 1.0, 4.0, 1.0]))
    states = []
    for data in (known.batch(1), known.filter(lambda x, y: x[0] > 0).batch(1)):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(make(), "mse", jit_compile=xla)
        model.fit(data, epochs=3, shuffle=False, verbose=0)
        states.append([v.numpy() for v in (*model.variables, *model.optimizer.variables)])
    for of_known, of_unknown in zip(*states, strict=True):
        np.testing.assert_allclose(of_unknown, of_known, rtol=1e-5)


@pytest.mark.parametrize("ender", ["limit", "signal"])
def test_training_never_stops_between_the_batches_of_an_update(fit, step_clock, line_model, ender):
    adam = line_model.optimizer
    line_model.compile(tt.GradientAccumulation(keras.optimizers.SGD(0.1), 2), "mse")
    try:
        if ender == "limit":  # over after the 3rd batch of 10 seconds
            fit(step_clock, stopping.TimeLimit(25 / 60, started=1000.0))
        else:  # in the 3rd batch
            begun = []

            def interrupt(batch, logs):
                begun.append(batch)
                if len(begun) == 3:
                    signal.raise_signal(signal.SIGINT)

            once = keras.callbacks.LambdaCallback(on_train_batch_begin=interrupt)
            fit(once, stopping.StopOnSignal())
        assert int(line_model.optimizer.iterations) == 2
        assert int(line_model.optimizer.variables[0].numpy()) == 4
    finally:
        line_model.compile(adam, "mse")
