"""The recurrent models: the papers' equations, and what is theirs alone in the model contract."""

import dataclasses
import functools

import keras
import keras.src.backend
import numpy as np
import numpy_recurrent
import pytest
import tensorflow as tf
from configurations import refusal

from tf_transformer.inference.scoring import has_attention_scores
from tf_transformer.layers.recurrent import StackedLSTM
from tf_transformer.models.architectures import build_model, preset
from tf_transformer.models.recurrent import AttentionalModel, reversed_order
from tf_transformer.models.recurrent_configs import (
    BahdanauConfig,
    ChoConfig,
    LuongConfig,
    SutskeverConfig,
)

pytestmark = pytest.mark.slow

UNTIED = {"tie_embeddings": False, "target_vocab_size": 11, "pad_id": 3}
SUTSKEVER = SutskeverConfig(13, 13, d_model=6, num_layers=2)
CHO = ChoConfig(13, 13, d_model=6, num_units=5)
BAHDANAU = BahdanauConfig(13, 13, d_model=6, num_units=5)
LUONG = LuongConfig(13, 13, d_model=6, num_layers=2)
VARIANTS = {
    "sutskever": SUTSKEVER,
    "sutskever, in order, three layers, untied": dataclasses.replace(
        SUTSKEVER, reverse_source=False, num_layers=3, **UNTIED
    ),
    "cho": CHO,
    "cho, untied": dataclasses.replace(CHO, **UNTIED),
    "bahdanau": BAHDANAU,
    "bahdanau, untied": dataclasses.replace(BAHDANAU, **UNTIED),
    "luong": LUONG,
    "luong, dot, local, in order": dataclasses.replace(
        LUONG, attention_score="dot", attention_window=1, reverse_source=False
    ),
    "luong, concat, local, untied": dataclasses.replace(
        LUONG, attention_score="concat", attention_window=2, num_layers=1, **UNTIED
    ),
    "luong, local, not fed": dataclasses.replace(LUONG, attention_window=2, input_feeding=False),
    "luong, concat, not fed": dataclasses.replace(
        LUONG, attention_score="concat", input_feeding=False
    ),
}
EVERY_VARIANT = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
ONE_EACH = pytest.mark.parametrize("config", [SUTSKEVER, CHO, BAHDANAU, LUONG])
SOURCE = np.array([[5, 6, 7, 8, 9, 4], [4, 9, 0, 0, 0, 0], [10, 4, 5, 1, 0, 0]], "int32")
TARGET = np.array([[2, 7, 1, 10, 4], [2, 8, 5, 0, 0], [2, 9, 9, 6, 0]], "int32")
IDS = tf.TensorSpec([None, None], tf.int32)
LENGTHS = [(6, 5), (2, 3), (4, 4)]


def batch(config):
    """The inputs, padded with the configuration's own id."""
    return {
        "source_ids": np.where(SOURCE == 0, config.pad_id, SOURCE),
        "target_ids": np.where(TARGET == 0, config.pad_id, TARGET),
    }


@pytest.fixture(scope="module")
def model_of(randomise):
    return functools.cache(lambda config: randomise(build_model(config)))


@EVERY_VARIANT
def test_logits_and_weights_equal_the_papers_equations(config, model_of):
    model, inputs = model_of(config), batch(config)
    logits, weights = np.asarray(model(inputs)), None
    if isinstance(model, AttentionalModel):
        again, scores = model(inputs, return_attention_scores=True)
        np.testing.assert_array_equal(again, logits)
        (weights,) = scores["cross"]
        assert weights.shape == (3, 1, 5, 6)
    assert has_attention_scores(model) == (weights is not None)
    for row, (num_source, num_target) in enumerate(LENGTHS):
        sides = zip(("source_ids", "target_ids"), LENGTHS[row], strict=True)
        source, target = (inputs[side][row, :length].tolist() for side, length in sides)
        expected, expected_weights = numpy_recurrent.outputs(model, source, target)
        np.testing.assert_allclose(logits[row, :num_target], expected, atol=1e-5)
        if weights is not None:
            found = weights[row, 0, :num_target]
            np.testing.assert_allclose(found[:, :num_source], expected_weights, atol=1e-5)
            np.testing.assert_array_equal(found[:, num_source:], 0)


@EVERY_VARIANT
@pytest.mark.parametrize(
    ("beam_size", "num_steps", "way"),
    [(None, None, lambda f: f), (3, 5, lambda f: tf.function(f, reduce_retracing=True))],
    ids=["eager", "graph"],
)
def test_cached_logits_equal_teacher_forcing(config, beam_size, num_steps, way, model_of):
    model, inputs = model_of(config), batch(config)
    expected = np.repeat(model(inputs), beam_size or 1, axis=0)
    ids = np.repeat(inputs["target_ids"], beam_size or 1, axis=0)
    size = None if beam_size is None else tf.constant(beam_size)
    cache = way(model.start_decoding)(inputs["source_ids"], num_steps, size)
    assert {name for name in cache if cache[name]} <= {"constants", "source", "target"}
    step = way(model.decode_step)
    for index in range(5):
        logits, cache = step(tf.constant(ids[:, index]), tf.constant(index), cache)
        np.testing.assert_allclose(logits, expected[:, index], atol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@EVERY_VARIANT
def test_gradients_reach_every_variable(config, policy, randomise):
    model = randomise(build_model(config, dtype=policy))
    inputs = batch(config)
    exact = build_model(config)
    exact.set_weights(model.get_weights())

    @tf.function(reduce_retracing=True)
    def gradients(inputs):
        with tf.GradientTape() as tape:
            logits = model(inputs)
            total = tf.reduce_sum(logits**2)
        parts = tape.gradient(total, model.trainable_variables)
        return logits, [tf.convert_to_tensor(part) for part in parts]

    logits, parts = gradients(inputs)
    assert logits.dtype == "float32"
    np.testing.assert_allclose(logits, exact(inputs), atol=1e-5 if policy == "float32" else 0.1)
    for variable, gradient in zip(model.trainable_variables, parts, strict=True):
        assert np.isfinite(gradient).all(), variable.path
        assert np.abs(gradient).max() > 1e-6, variable.path


@EVERY_VARIANT
def test_empty_sources_and_empty_batches_give_numbers(config, model_of):
    model, inputs = model_of(config), batch(config)
    padding = np.full_like(inputs["source_ids"], config.pad_id)
    assert np.isfinite(model({**inputs, "source_ids": padding})).all()
    # In eager mode Keras' cells mistake empty states for a bias (Keras 3.15.1).
    call = tf.function(lambda *ids: model(ids), input_signature=[IDS, IDS])
    start = tf.function(lambda ids: model.start_decoding(ids, beam_size=2), input_signature=[IDS])
    for shape in [(0, 0), (0, 4)]:
        nothing = np.zeros(shape, "int32")
        assert call(nothing, nothing).shape == (*shape, config.target_vocab_size)
        assert {len(state) for state in start(nothing)["target"].values()} == {0}


def test_only_the_tokens_but_the_last_are_reversed():
    mask = np.arange(6) < np.array([[6], [1], [3], [2]])
    order = np.asarray(reversed_order(mask))
    assert order.tolist() == [
        [4, 3, 2, 1, 0, 5],
        [0, 1, 2, 3, 4, 5],
        [1, 0, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
    ]


def test_input_feeding_changes_later_steps_only(model_of, randomise):
    model, inputs = model_of(LUONG), batch(LUONG)
    other = build_model(LUONG)
    other.set_weights(model.get_weights())
    kernel = other.decoder.layers[0].cell.kernel
    kernel.assign(np.concatenate([kernel[:6], np.zeros_like(kernel[6:])]))
    difference = np.abs(np.asarray(other(inputs)) - np.asarray(model(inputs))).max(axis=(0, 2))
    assert difference[0] < 1e-6 and (difference[1:] > 1e-3).all()


def test_dropout_drawn_before_a_loop_is_of_what_upper_layers_read(randomise):
    stack = StackedLSTM(3, 4)
    stack.build((None, None, 5))
    randomise(stack)
    rng = np.random.default_rng(1)
    x, h = rng.normal(size=(2, 5)), rng.normal(size=(2, 4))
    states = {f"{kind}{index}": h for kind in "hc" for index in range(3)}
    factors = [np.zeros((2, 4)), np.full((2, 4), 2.0)]
    top, last = stack.step(x, states, factors)
    first, _ = stack.layers[0].cell(x, [h, h])
    second, _ = stack.layers[1].cell(np.zeros((2, 4)), [h, h])
    third, _ = stack.layers[2].cell(2 * np.asarray(second), [h, h])
    for found, expected in [(last["h0"], first), (last["h1"], second), (top, third)]:
        np.testing.assert_allclose(found, expected, atol=1e-6)


@EVERY_VARIANT
def test_dropout_acts_in_training_only(config, randomise):
    keras.utils.set_random_seed(2)
    model = randomise(build_model(dataclasses.replace(config, dropout_rate=0.5)))
    quiet = np.asarray(model(batch(config)))
    call = tf.function(model)
    noisy = [np.asarray(call(batch(config), training=True)) for _ in range(2)]
    for one, other in [(noisy[0], quiet), noisy]:
        assert np.abs(one - other).max() > 1e-2


# What Keras asks of a layer before it takes cuDNN's operation.
CUDNN = {
    "activation": keras.activations.tanh,
    "recurrent_activation": keras.activations.sigmoid,
    "unroll": False,
    "reset_after": True,
}


@ONE_EACH
def test_cudnn_can_run_the_encoder_and_does_in_training_only(config, model_of, monkeypatch):
    calls = []

    def record(x, *states_and_mask, **options):
        calls.append((states_and_mask[-1], options))
        raise NotImplementedError  # as without a GPU

    for name in ("lstm", "gru"):
        monkeypatch.setattr(keras.src.backend, name, record)
    model, inputs = model_of(config), batch(config)
    inputs["source_ids"][1] = config.pad_id
    model(inputs)
    model.start_decoding(inputs["source_ids"])
    assert not calls
    model(inputs, training=True)
    assert len(calls) >= 2 - isinstance(model.config, ChoConfig)
    for mask, options in calls:
        assert options["bias"] is not None
        assert {name: options.get(name, value) for name, value in CUDNN.items()} == CUDNN
        if mask is not None:
            lengths = np.sum(mask, axis=1, keepdims=True)
            assert (lengths > 0).all()
            np.testing.assert_array_equal(mask, np.arange(6) < lengths)


@pytest.mark.parametrize("name", ["sutskever", "cho", "bahdanau", "luong"])
def test_the_tiny_models_have_two_to_three_million_parameters(name):
    model = build_model(preset("tiny", 8000, 8000, architecture=name))
    assert 2e6 < model.count_params() < 3e6


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (SUTSKEVER, {"num_layers": 0}, "num_layers must be greater than 0"),
        (CHO, {"num_units": 0}, "num_units must be greater than 0"),
        (BAHDANAU, {"num_units": -1}, "num_units must be greater than 0"),
        (LUONG, {"attention_window": 0}, "attention_window must be greater than 0"),
        (LUONG, {"attention_score": "genral"}, "unknown attention_score 'genral'"),
        (LUONG, {"num_layers": 0}, "num_layers must be greater than 0"),
    ],
)
def test_an_invalid_setting_is_named(config, changes, message):
    assert message in refusal(dataclasses.replace, config, **changes)
