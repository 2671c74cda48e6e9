"""Adam, global clipping and loss scaling: alone, and on two replicas."""

import keras
import numpy as np
import pytest
import replicas
import tensorflow as tf
from small_models import small_model

import tf_transformer as tt
from tf_transformer.run_tables import TrainingConfig
from tf_transformer.runs.compilation import compile_model


# bfloat16 has too few bits for 0.999.
@pytest.mark.parametrize(
    ("dtype", "in_graph", "beta_2"),
    [("float32", True, 0.98), ("bfloat16", False, 0.98), ("bfloat16", True, 0.999)],
)
def test_an_update_is_that_of_the_paper(dtype, in_graph, beta_2):
    # Kingma and Ba 2015, algorithm 1, in float64.
    random = np.random.default_rng(2)
    start, gradients = random.normal(size=(3, 4)), random.normal(size=(5, 3, 4))
    expected, mean, square = start, 0.0, 0.0
    for t, gradient in enumerate(gradients, start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = beta_2 * square + (1 - beta_2) * gradient**2
        expected = expected - 0.3 * t * (mean / (1 - 0.9**t)) / np.sqrt(square / (1 - beta_2**t))

    class Rising(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.3 * (tf.cast(step, "float32") + 1)

    variable = keras.Variable(start, dtype=dtype)
    optimizer = tt.Adam(Rising(), beta_2=beta_2)
    optimizer.build([variable])

    def update(gradient):
        optimizer.apply([gradient], [variable])

    update = tf.function(update) if in_graph else update
    for gradient in gradients:
        update(tf.constant(gradient, dtype))
    tolerance = 1e-5 if dtype == "float32" else 0.3
    np.testing.assert_allclose(tf.cast(variable.value, "float64"), expected, atol=tolerance)
    assert int(optimizer.iterations.numpy()) == 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_first_update_is_the_rate_however_often_a_row_is_looked_up(dtype):
    embedding = keras.layers.Embedding(3, 2, embeddings_initializer="zeros", dtype=dtype)
    embedding.build()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(np.ones((1, 16), "int32")))
    gradient = tape.gradient(loss, embedding.embeddings.value)
    assert gradient.values.shape == (16, 2)
    tt.Adam(0.1).apply([gradient], [embedding.embeddings])
    expected = [[0.0, 0.0], [-0.1, -0.1], [0.0, 0.0]]
    rtol = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(embedding.embeddings.numpy().astype("float32"), expected, rtol=rtol)


def test_constants_may_be_integers_and_half_precision_has_an_epsilon():
    variable = keras.Variable(np.ones(3), dtype="float16")
    tt.Adam(0.1, beta_1=0).apply([tf.constant([1.0, 0.0, -1.0], tf.float16)], [variable])
    np.testing.assert_allclose(variable.numpy(), [0.9, 1.0, 1.1], atol=1e-3)


@pytest.mark.parametrize(("norm", "scale"), [(10.0, 0.2), (0.5, 1.0), (0.0, 1.0)])
def test_gradients_are_scaled_down_to_the_norm_together(norm, scale):
    variables = [keras.Variable(np.zeros(2)), keras.Variable(np.zeros((2, 2)))]
    gradients = [np.array([0.6, 0.0]) * norm, np.array([[0.0, 0.8], [0.0, 0.0]]) * norm]
    optimizer = tt.Adam(1.0, beta_1=0.5, global_clipnorm=2.0)
    optimizer.apply([tf.constant(g, "float32") for g in gradients], variables)
    moments = optimizer.variables[2::2]  # half of the first gradients
    for gradient, moment in zip(gradients, moments, strict=True):
        np.testing.assert_allclose(moment.numpy(), gradient * scale / 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize(("clip_norm", "xla"), [(None, False), (2.0, False), (2.0, True)])
def test_gradients_that_are_not_finite_change_and_count_nothing(dtype, bad, clip_norm, xla):
    variables = [keras.Variable(np.ones(3), dtype=dtype) for _ in range(2)]
    optimizer = tt.Adam(0.1, weight_decay=0.5, global_clipnorm=clip_norm)
    optimizer.build(variables)

    @tf.function(jit_compile=xla)
    def update(*gradients):
        optimizer.apply(list(gradients), variables)

    def state():
        return [v.numpy().astype("float64") for v in (*variables, *optimizer.variables)]

    one, other = (tf.constant(gradient, dtype) for gradient in ([3.0, 0, 4], [0.0, 0, 0]))
    update(one, other)
    before = state()
    assert int(before[2]) == 1 and float(optimizer.gradient_norm) == 5
    update(tf.constant([1, bad, 1], dtype), one)
    assert not np.isfinite(float(optimizer.gradient_norm))
    for value, old in zip(state(), before, strict=True):
        np.testing.assert_array_equal(value, old)
    update(one, other)
    assert int(optimizer.iterations.numpy()) == 2 and (state()[0] < before[0]).all()


@pytest.fixture(scope="module")
def two_devices(result_of):
    return result_of(replicas.script(replicas.optimizers_on_two_devices))


@pytest.mark.slow
def test_rows_of_all_replicas_are_added_up_before_they_are_squared(two_devices):
    dense, *others = two_devices["looked up"]
    assert np.abs(dense[:3]).min() > 0.01
    for weights in others:
        np.testing.assert_allclose(weights, dense, atol=1e-5)


@pytest.mark.slow
def test_an_overflow_of_any_replica_drops_the_update_of_all(two_devices):
    for found, scale in zip(two_devices["overflow"], (4.0, 4.0, None, None), strict=True):
        dropped, made = found
        assert dropped == [[[0.0, 0.0]] * 2, scale, 0]
        np.testing.assert_allclose(made[0], -0.1, rtol=1e-4)
        assert made[1:] == [scale, 1]


@pytest.mark.parametrize("other", [{}, {"precision": "mixed_float16"}])
@pytest.mark.parametrize("architecture", ["transformer", "bahdanau"])
def test_weight_decay_spares_biases_and_norms(architecture, other):
    # An update with gradients of 0 only decays.
    model = small_model(architecture, "float32")
    config = TrainingConfig(weight_decay=0.5, **other)
    compile_model(model, config, tt.TrapezoidSchedule(0.1, total_steps=9, warmup_steps=1))
    variables = model.trainable_variables
    before = [variable.numpy() for variable in variables]
    model.optimizer.apply([tf.zeros(value.shape) for value in before], variables)
    for variable, value in zip(variables, before, strict=True):
        kept = 1 if variable.name in ("bias", "gamma", "beta") else 1 - 0.1 * 0.5
        np.testing.assert_allclose(variable.numpy(), kept * value, rtol=1e-6, err_msg=variable.path)


# Keras runs a step for the end of the data where it does not know how many there are.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_end_of_data_of_unknown_size_is_no_step():
    known = tf.data.Dataset.from_tensor_slices(([[1.0], [2.0], [3.0], [4.0]], [3.0, 1.0, 4.0, 1.0]))
    states = []
    for data in (known.batch(1), known.filter(lambda x, y: x[0] > 0).batch(1)):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        optimizer = tt.Adam(0.1, weight_decay=0.5, global_clipnorm=0.01)
        model.compile(optimizer, "mse", jit_compile=True)
        model.fit(data, epochs=3, shuffle=False, verbose=0)
        states.append([v.numpy() for v in (*model.variables, *model.optimizer.variables)])
    for of_known, of_unknown in zip(*states, strict=True):
        np.testing.assert_allclose(of_unknown, of_known, rtol=1e-5)
