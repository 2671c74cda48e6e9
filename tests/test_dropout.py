"""Tests that each replica of a model draws its own dropout."""

import pytest

# TensorFlow creates its devices once, so this needs a process of its own.
TWO_DEVICES = """
import json, keras, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_transformer as tt
from tf_transformer.training.distribution import seeds_of, separate_seeds

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


@pytest.mark.slow
def test_each_replica_draws_its_own_dropout_and_the_first_that_of_one_device(result_of):
    on_two, on_one = result_of(TWO_DEVICES)
    (first, other), (first_again, other_again) = on_two
    assert first != other
    assert first_again not in (first, other) and other_again not in (first, other, first_again)
    assert [first, first_again] == [replicas[0] for replicas in on_one]
