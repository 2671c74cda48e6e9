"""Clipping and moving averages: on two replicas, accumulated, in `fit`, and in checkpoints."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.config import RunConfig
from tf_transformer.training.callbacks import SaveCheckpoints
from tf_transformer.training.checkpoints import Checkpoints
from tf_transformer.training.train import train


def averages(weights, momentum):
    """The averages after each of these weights, in float64, as the docstring of `Adam` has them."""
    average, found = 0.0, []
    for updates, weight in enumerate(weights):
        kept = min(momentum, updates / (updates + 10))
        average = kept * average + (1 - kept) * np.asarray(weight, "float64")
        found.append(average)
    return found


# --- The optimizer --------------------------------------------------------------------------


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_is_that_of_the_paper(dtype, in_graph):
    # Kingma and Ba 2015, algorithm 1, in float64; bfloat16 has 8 bits.
    random = np.random.default_rng(2)
    start, gradients = random.normal(size=(3, 4)), random.normal(size=(5, 3, 4))
    expected, mean, square = start, 0.0, 0.0
    for t, gradient in enumerate(gradients, start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.98 * square + 0.02 * gradient**2
        expected = expected - 0.3 * t * (mean / (1 - 0.9**t)) / np.sqrt(square / (1 - 0.98**t))

    class Rising(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.3 * (tf.cast(step, "float32") + 1)

    variable = keras.Variable(start, dtype=dtype)
    optimizer = tt.Adam(Rising())
    optimizer.build([variable])

    def update(gradient):
        optimizer.apply([gradient], [variable])

    update = tf.function(update) if in_graph else update
    for gradient in gradients:
        update(tf.constant(gradient, dtype))
    tolerance = 1e-5 if dtype == "float32" else 0.3
    np.testing.assert_allclose(tf.cast(variable.value, "float64"), expected, atol=tolerance)
    assert int(optimizer.iterations.numpy()) == 5


def test_embeddings_without_a_gradient_move_by_their_moments():
    variable = keras.Variable(np.zeros((3, 2)))
    optimizer = tt.Adam(0.1)
    optimizer.build([variable])
    for row in (0, 2):  # as the gradient of a gather is
        gradient = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([row]), tf.constant([3, 2]))
        optimizer.apply([gradient], [variable])
    dense, other = keras.Variable(np.zeros((3, 2))), tt.Adam(0.1)
    other.build([dense])
    for row in (0, 2):
        other.apply([tf.one_hot([row], 3, axis=0) * tf.ones((3, 2))], [dense])
    np.testing.assert_allclose(variable.numpy(), dense.numpy(), rtol=1e-6)
    assert (variable.numpy()[1] == 0).all() and variable.numpy()[0, 0] < -0.1


def test_the_average_has_the_documented_momentum():
    variable = keras.Variable([0.0, 3.0])
    optimizer = tt.Adam(0.1, use_ema=True, ema_momentum=0.4)
    weights = []
    for step in range(12):
        optimizer.apply([tf.constant([1.0, step - 5.0])], [variable])
        weights.append(variable.numpy())
    optimizer.use_averages()
    expected = averages(weights, 0.4)[-1]
    assert abs(expected - weights[-1]).max() > 0.01
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)
    optimizer.use_averages()
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, err_msg="twice is once")
    optimizer.use_weights()
    optimizer.use_weights()
    np.testing.assert_array_equal(variable.numpy(), weights[-1])


def test_before_the_first_update_there_is_no_average():
    variable = keras.Variable([2.0])
    optimizer = tt.Adam(0.1, use_ema=True, ema_momentum=0.9)
    optimizer.build([variable])
    optimizer.use_averages()
    assert variable.numpy() == [2.0]


@pytest.mark.parametrize(("norm", "scale"), [(10.0, 0.2), (2.0, 1.0), (0.5, 1.0), (0.0, 1.0)])
def test_gradients_are_scaled_down_to_the_norm_together(norm, scale):
    variables = [keras.Variable(np.zeros(2)), keras.Variable(np.zeros((2, 2)))]
    gradients = [np.array([0.6, 0.0]) * norm, np.array([[0.0, 0.8], [0.0, 0.0]]) * norm]
    optimizer = tt.Adam(1.0, beta_1=0.5, global_clipnorm=2.0)
    optimizer.apply([tf.constant(g, "float32") for g in gradients], variables)
    moments = optimizer.variables[2::2]  # half of the first gradients
    for gradient, moment in zip(gradients, moments, strict=True):
        np.testing.assert_allclose(moment.numpy(), gradient * scale / 2, rtol=1e-6)


def test_config_round_trip():
    optimizer = tt.Adam(tt.NoamSchedule(16), global_clipnorm=2.0, use_ema=True, ema_momentum=0.5)
    twin = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(twin, tt.Adam)
    assert (twin.clip_norm, twin.average_momentum, twin.beta_2) == (2.0, 0.5, 0.98)
    assert twin.get_config() == optimizer.get_config()


# Each replica has its own gradient; clipped apart they would differ from clipped together.
TWO_DEVICES = """
import json, keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_transformer as tt
GRADIENTS = np.random.default_rng(0).normal(0, [[1], [9]], (6, 2, 3)).astype("float32")

def result(strategy, accumulated, wrap=lambda inner: inner):
    with strategy.scope():
        variable = keras.Variable(np.zeros(3))
        adam = tt.Adam(0.1, global_clipnorm=2.0, use_ema=True, ema_momentum=0.9)
        optimizer = tt.GradientAccumulation(adam, 2) if accumulated else adam
        optimizer.build([variable])
    def step(parts):
        def replica():
            context = tf.distribute.get_replica_context()
            mine = (tf.reduce_sum(parts, axis=0) if context.num_replicas_in_sync == 1
                    else parts[context.replica_id_in_sync_group])
            optimizer.apply([mine], [variable])
        strategy.run(replica)
    step = tf.function(step)
    for parts in GRADIENTS:
        step(tf.constant(parts))
    weights = variable.numpy().tolist()
    adam.use_averages()
    average = variable.numpy().tolist()
    adam.use_weights()
    assert variable.numpy().tolist() == weights
    return weights, average

two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
one = tf.distribute.get_strategy()
print(json.dumps([[result(s, a) for s in (one, two)] for a in (False, True)]))
"""


@pytest.fixture(scope="module")
def two_devices(result_of):
    return result_of(TWO_DEVICES)


@pytest.mark.parametrize("accumulated", [False, True])
def test_two_replicas_clip_and_average_as_one(two_devices, accumulated):
    (weights, average), (other_weights, other_average) = two_devices[accumulated]
    assert np.abs(np.subtract(weights, average)).max() > 0.01
    np.testing.assert_allclose(other_weights, weights, rtol=1e-5)
    np.testing.assert_allclose(other_average, average, rtol=1e-5)


def test_accumulated_gradients_are_clipped_as_their_mean():
    reached = []
    for optimizer, gradients in (
        (tt.GradientAccumulation(tt.Adam(0.1, global_clipnorm=1.0), 2), ([30.0, 0.0], [0.0, 4.0])),
        (tt.Adam(0.1, global_clipnorm=1.0), ([15.0, 2.0],)),
    ):
        variable = keras.Variable([0.0, 0.0])
        for gradient in gradients:
            optimizer.apply([tf.constant(gradient)], [variable])
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        reached.append([v.numpy() for v in inner.variables[2:]])
    for one, other in zip(*reached, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


# --- In `fit` -------------------------------------------------------------------------------


class Weights(keras.callbacks.Callback):
    """Notes the one weight of the model after each update, and in each validation."""

    def __init__(self):
        super().__init__()
        self.trained, self.validated = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.trained.append(self.model.trainable_variables[0].numpy().item())

    def on_test_batch_end(self, batch, logs=None):
        self.validated.append(self.model.trainable_variables[0].numpy().item())


def line_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(tt.Adam(0.1, use_ema=True, ema_momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def fit(model, epochs, *callbacks):
    data = tf.data.Dataset.from_tensors((np.ones((2, 1)), np.full((2, 1), 9.0))).repeat()
    model.fit(
        data, validation_data=data.take(1), steps_per_epoch=4, epochs=epochs, shuffle=False,
        verbose=0, callbacks=[tt.UseAverages(), *callbacks],
    )  # fmt: skip


def test_validation_sees_the_averages_and_training_the_weights(tmp_path):
    model, weights = line_model(), Weights()
    checkpoints = Checkpoints(tmp_path, keep=9)
    fit(model, 2, weights, SaveCheckpoints(checkpoints, every=3))
    expected = averages(weights.trained, 0.9)
    np.testing.assert_allclose(weights.validated, [expected[3], expected[7]], rtol=1e-5)
    assert model.trainable_variables[0].numpy().item() == weights.validated[-1]
    # A checkpoint between validations has the averages too, and does not change training.
    plain, plain_weights = line_model(), Weights()
    fit(plain, 2, plain_weights)
    assert weights.trained == plain_weights.trained
    for checkpoint in checkpoints.all():
        model = line_model()
        checkpoint.restore(model)
        np.testing.assert_allclose(
            model.trainable_variables[0].numpy().item(), expected[checkpoint.step - 1], rtol=1e-5
        )
    assert [checkpoint.step for checkpoint in checkpoints.all()] == [3, 4, 6, 8]


def test_another_fit_continues_from_the_weights_also_from_a_checkpoint(tmp_path):
    whole, parts = Weights(), Weights()
    fit(line_model(), 3, whole)
    model, checkpoints = line_model(), Checkpoints(tmp_path)
    fit(model, 1, parts, SaveCheckpoints(checkpoints))
    fit(model, 1, parts)
    assert parts.trained == whole.trained[:8]
    restored, rest = line_model(), Weights()
    checkpoints.all()[0].restore(restored)
    fit(restored, 2, rest)
    assert rest.trained == whole.trained[4:]
    assert rest.validated == whole.validated[1:]


def test_bleu_is_that_of_the_averages(tmp_path, write_copy_task, monkeypatch):
    write_copy_task(tmp_path)
    files = {f"{part}_tsv": str(tmp_path / part) for part in ("train", "validation")}
    config = RunConfig.from_dict({
        "data": {"corpus": "tsv", **files, "batch_tokens": 60, "max_length": 30},
        "model": {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32},
        "tokenizer": {"vocab_size": 272},
        "training": {"steps": 4, "validation_steps": 2, "ema_momentum": 0.9},
    })  # fmt: skip
    models, translated_with = [], []

    def from_model(model, *_, **__):
        def translate(texts):
            translated_with.append(model.trainable_variables[0].numpy())
            return texts

        models.append(model)
        return translate

    monkeypatch.setattr(tt.Translator, "from_model", from_model)
    train(config, tmp_path / "run")
    model, _ = models  # the other one tries averages of the checkpoints when training is over
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints").all()
    assert len(translated_with) == len(checkpoints) + 1 == 3
    for checkpoint, weights in zip(checkpoints, translated_with, strict=False):
        checkpoint.restore(model)  # which has the averages
        assert (model.trainable_variables[0].numpy() == weights).all()
        model.optimizer.use_weights()
        assert (model.trainable_variables[0].numpy() != weights).any()
