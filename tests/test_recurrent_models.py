"""The recurrent models: the papers' equations, and what is theirs alone in the model contract."""

import functools

import keras
import keras.src.backend
import numpy as np
import numpy_recurrent
import pytest
import tensorflow as tf
from small_models import UNTIED, architecture_of, batch, small_config

from tf_transformer.layers.recurrent import RecurrentStack
from tf_transformer.models.architectures import build_model
from tf_transformer.models.model_configs import ChoConfig
from tf_transformer.models.seq2seq import AttentionalSeq2Seq

pytestmark = pytest.mark.slow

CHANGES = {
    "sutskever": {},
    "sutskever, in order": {"reverse_source": False, "pad_id": 3, **UNTIED},
    "cho": {},
    "bahdanau": {},
    "bahdanau, untied": {"pad_id": 3, **UNTIED},
    "luong": {},
    "luong, dot, local": {
        "attention_score": "dot", "attention_window": 1, "reverse_source": False,
    },
    "luong, concat, local": {"attention_score": "concat", "attention_window": 2, **UNTIED},
    "luong, local, not fed": {"attention_window": 2, "input_feeding": False},
}  # fmt: skip
VARIANTS = {
    name: small_config(architecture_of(name), **changes) for name, changes in CHANGES.items()
}
EVERY_VARIANT = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
ONE_EACH = pytest.mark.parametrize("name", ["sutskever", "cho", "bahdanau", "luong"])
IDS = tf.TensorSpec([None, None], tf.int32)
LENGTHS = [(5, 6), (2, 3)]


@pytest.fixture(scope="module")
def model_of(randomise):
    return functools.cache(lambda config: randomise(build_model(config)))


@EVERY_VARIANT
def test_logits_and_weights_equal_the_papers_equations(config, model_of):
    model, inputs = model_of(config), batch(config)
    logits, weights = np.asarray(model(inputs)), None
    if isinstance(model, AttentionalSeq2Seq):
        again, scores = model(inputs, return_attention_scores=True)
        np.testing.assert_array_equal(again, logits)
        (weights,) = scores["cross"]
        assert weights.shape == (2, 1, 6, 5)
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
def test_empty_sources_and_empty_batches_give_numbers(config, model_of):
    model, inputs = model_of(config), batch(config)
    padding = np.full_like(inputs["source_ids"], config.pad_id)
    assert np.isfinite(model({**inputs, "source_ids": padding})).all()
    # In eager mode Keras' cells mistake empty states for a bias (Keras 3.15.1).
    call = tf.function(lambda *ids: model(ids), input_signature=[IDS, IDS])
    start = tf.function(lambda ids: model.start_decoding(ids), input_signature=[IDS])
    for shape in [(0, 0), (0, 4)]:
        nothing = np.zeros(shape, "int32")
        assert call(nothing, nothing).shape == (*shape, config.target_vocab_size)
        assert {len(state) for state in start(nothing)["target"].values()} == {0}


def test_dropout_drawn_before_a_loop_is_of_what_upper_layers_read(randomise):
    stack = RecurrentStack("lstm", 3, 4)
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


# What Keras asks of a layer before it takes cuDNN's operation.
CUDNN = {
    "activation": keras.activations.tanh,
    "recurrent_activation": keras.activations.sigmoid,
    "unroll": False,
    "reset_after": True,
}


@ONE_EACH
def test_cudnn_can_run_the_encoder_and_does_in_training_only(name, model_of, monkeypatch):
    calls = []

    def record(x, *states_and_mask, **options):
        calls.append((states_and_mask[-1], options))
        raise NotImplementedError  # as without a GPU

    for cell in ("lstm", "gru"):
        monkeypatch.setattr(keras.src.backend, cell, record)
    model, inputs = model_of(VARIANTS[name]), batch(VARIANTS[name])
    inputs["source_ids"][1] = model.config.pad_id
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
            np.testing.assert_array_equal(mask, np.arange(5) < lengths)
