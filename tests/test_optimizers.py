"""Adam, global clipping and loss scaling: alone, on two replicas, and accumulated."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.config import TrainingConfig
from tf_transformer.runs.compile import compile_model


@pytest.mark.parametrize(("dtype", "in_graph"), [("float32", True), ("bfloat16", False)])
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


# Ours, and what the documentation advises for Keras' own.
@pytest.mark.parametrize(
    "make",
    [tt.Adam, lambda rate: tt.GradientAccumulation(keras.optimizers.AdamW(rate), 1)],
    ids=["ours", "GradientAccumulation"],
)
def test_the_first_update_is_the_rate_however_often_a_row_is_looked_up(make):
    embedding = keras.layers.Embedding(3, 2, embeddings_initializer="zeros")
    embedding.build()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(np.ones((1, 16), "int32")))
    gradient = tape.gradient(loss, embedding.embeddings.value)
    assert gradient.values.shape == (16, 2)
    make(0.1).apply([gradient], [embedding.embeddings])
    expected = [[0.0, 0.0], [-0.1, -0.1], [0.0, 0.0]]
    np.testing.assert_allclose(embedding.embeddings.numpy(), expected, rtol=1e-5)


def test_repeated_rows_are_their_sum_with_decay_too():
    random = np.random.default_rng(1)
    rows = tf.constant(random.integers(0, 3, (4, 7)))
    values = tf.constant(random.normal(size=(4, 7, 2)), "float32")

    def state_after(gradient_of):
        variable = keras.Variable(np.ones((4, 2)))
        optimizer = tt.Adam(0.1, weight_decay=0.5)
        optimizer.build([variable])

        @tf.function
        def update(rows, values):
            optimizer.apply([gradient_of(rows, values)], [variable])

        for step in range(4):
            update(rows[step], values[step])
        return [v.numpy() for v in (variable, *optimizer.variables)]

    sparse = state_after(lambda r, v: tf.IndexedSlices(v, r, tf.constant([4, 2], "int64")))
    dense = state_after(lambda r, v: tf.math.unsorted_segment_sum(v, r, 4))
    for one, other in zip(sparse, dense, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize(("norm", "scale"), [(10.0, 0.2), (0.5, 1.0), (0.0, 1.0)])
def test_gradients_are_scaled_down_to_the_norm_together(norm, scale):
    variables = [keras.Variable(np.zeros(2)), keras.Variable(np.zeros((2, 2)))]
    gradients = [np.array([0.6, 0.0]) * norm, np.array([[0.0, 0.8], [0.0, 0.0]]) * norm]
    optimizer = tt.Adam(1.0, beta_1=0.5, global_clipnorm=2.0)
    optimizer.apply([tf.constant(g, "float32") for g in gradients], variables)
    moments = optimizer.variables[2::2]  # half of the first gradients
    for gradient, moment in zip(gradients, moments, strict=True):
        np.testing.assert_allclose(moment.numpy(), gradient * scale / 2, rtol=1e-6)


@pytest.mark.parametrize(
    "optimizer",
    [
        tt.Adam(tt.NoamSchedule(16), weight_decay=0.25, global_clipnorm=2.0),
        tt.GradientAccumulation(keras.optimizers.SGD(0.25, momentum=0.5), 4),
    ],
)
def test_an_optimizer_is_made_again_from_its_configuration(optimizer):
    twin = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(twin) is type(optimizer) and twin.get_config() == optimizer.get_config()


# Each replica has its own gradient; clipped apart they would differ from clipped together. Its
# rows are some of the other's, and one twice.
TWO_DEVICES = """
import json, keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_transformer as tt
one, two = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def trained(strategy, make, shape, batches, gradient_of):
    # Updates a variable with the gradients that the replicas make of their parts of each batch.
    with strategy.scope():
        variable, optimizer = keras.Variable(np.zeros(shape)), make()
        optimizer.build([variable])
    def step(batch):
        def replica():
            context = tf.distribute.get_replica_context()
            mine = slice(context.replica_id_in_sync_group, None, context.num_replicas_in_sync)
            optimizer.apply([gradient_of(batch, mine)], [variable])
        strategy.run(replica)
    step = tf.function(step)
    for batch in batches:
        step(tf.constant(batch, "float32"))
    return variable, optimizer

def total(batch, mine):
    return tf.reduce_sum(batch[mine], axis=0)

def clipped(strategy, accumulated):
    def make():
        adam = tt.Adam(0.1, global_clipnorm=2.0)
        return tt.GradientAccumulation(adam, 2) if accumulated else adam
    batches = np.random.default_rng(0).normal(0, [[1], [9]], (6, 2, 3))
    return trained(strategy, make, 3, batches, total)[0].numpy().tolist()

def looked_up(strategy, dense=False):
    def gradient(batch, mine):
        rows = tf.reshape(tf.constant([[0, 1, 1], [1, 2, 0]])[mine], [-1])
        values = tf.reshape(batch[mine], [-1, 3])
        if dense:
            return tf.math.unsorted_segment_sum(values, rows, 4)
        return tf.IndexedSlices(values, rows, tf.constant([4, 3]))
    batches = np.random.default_rng(1).normal(size=(4, 2, 3, 3))
    return trained(strategy, lambda: tt.Adam(0.1), (4, 3), batches, gradient)[0].numpy().tolist()

def after_overflow(replica):
    # One update with an infinite gradient in its last batch, and one without.
    def make():
        scaled = tt.LossScaleOptimizer(tt.Adam(0.1, global_clipnorm=2.0), initial_scale=8.0)
        return tt.GradientAccumulation(scaled, 2)
    good, bad = np.ones((2, 2, 2))
    bad[replica, 1] = np.inf
    found = []
    for batches in ([good, bad], [good, bad, good, good]):
        variable, optimizer = trained(two, make, 2, batches, total)
        weights = [w.numpy().tolist() for w in two.experimental_local_results(variable.value)]
        scale = optimizer.inner_optimizer.dynamic_scale.numpy()
        found.append([weights, float(scale), int(optimizer.iterations.numpy())])
    return found

results = [[clipped(s, a) for s in (one, two)] for a in (False, True)]
results.append([looked_up(one, dense=True), looked_up(one), looked_up(two)])
results.append([after_overflow(replica) for replica in (0, 1)])
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def two_devices(result_of):
    return result_of(TWO_DEVICES)


@pytest.mark.parametrize("accumulated", [False, True])
def test_two_replicas_clip_as_one(two_devices, accumulated):
    weights, other_weights = two_devices[accumulated]
    assert np.abs(weights).max() > 0.01
    np.testing.assert_allclose(other_weights, weights, rtol=1e-5)


def test_rows_of_all_replicas_are_added_up_before_they_are_squared(two_devices):
    dense, *others = two_devices[2]
    assert np.abs(dense[:3]).min() > 0.01
    for weights in others:
        np.testing.assert_allclose(weights, dense, atol=1e-5)


@pytest.mark.parametrize("replica", [0, 1])
def test_an_overflow_of_any_replica_drops_the_update_of_all(two_devices, replica):
    dropped, made = two_devices[3][replica]
    assert dropped == [[[0.0, 0.0]] * 2, 4.0, 0]
    np.testing.assert_allclose(made[0], -0.1, rtol=1e-4)
    assert made[1:] == [4.0, 1]


def test_train_scales_the_loss_of_float16_inside_of_the_accumulation():
    model = tt.Transformer(tt.TransformerConfig(9, 9, 8, num_layers=1, num_heads=1, d_ff=8))
    config = TrainingConfig(precision="mixed_float16", accumulation_steps=2)
    compile_model(model, config, tt.NoamSchedule(8))
    assert isinstance(model.optimizer.inner_optimizer, tt.LossScaleOptimizer)


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


# Keras runs a step for the end of the data where it does not know how many there are.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("xla", [False, True])
def test_the_end_of_data_of_unknown_size_is_no_step(accumulated, xla):
    known = tf.data.Dataset.from_tensor_slices(([[1.0], [2.0], [3.0], [4.0]], [3.0, 1.0, 4.0, 1.0]))
    states = []
    for data in (known.batch(1), known.filter(lambda x, y: x[0] > 0).batch(1)):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        adam = tt.Adam(0.1, weight_decay=0.5, global_clipnorm=0.01)
        optimizer = tt.GradientAccumulation(adam, 2) if accumulated else adam
        model.compile(optimizer, "mse", jit_compile=xla)
        model.fit(data, epochs=3, shuffle=False, verbose=0)
        states.append([v.numpy() for v in (*model.variables, *model.optimizer.variables)])
    for of_known, of_unknown in zip(*states, strict=True):
        np.testing.assert_allclose(of_unknown, of_known, rtol=1e-5)
