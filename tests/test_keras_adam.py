"""Arguments that our Adam shares with Keras'."""

import keras
import pytest
import tensorflow as tf

import tf_transformer as tt


def test_it_has_a_default_rate():
    assert float(tt.Adam().learning_rate) == pytest.approx(0.001)


def test_weight_decay_shrinks_weights_apart_from_the_gradient():
    variable = keras.Variable([2.0])
    tt.Adam(0.1, weight_decay=0.5).apply([tf.constant([0.0])], [variable])
    assert float(variable.numpy()[0]) == pytest.approx(2.0 - 2.0 * 0.1 * 0.5)


@pytest.mark.parametrize(("name", "value"), [("weight_decay", 0.25), ("global_clipnorm", 2.0)])
def test_an_argument_makes_the_round_trip(name, value):
    twin = keras.optimizers.deserialize(keras.optimizers.serialize(tt.Adam(**{name: value})))
    assert isinstance(twin, tt.Adam)
    assert twin.get_config()[name] == value != tt.Adam().get_config()[name]
