"""The exported form of a Transformer: the same logits, attention and searches as the model's."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import CONFIGS, SOURCE, batch, small_config

from tf_transformer.decoding.beam import beam_search
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.export.folding import freeze
from tf_transformer.export.frozen import FrozenTransformer
from tf_transformer.models.architectures import build_model

TRANSFORMERS = [name for name in CONFIGS if name.startswith("transformer")]
MAX_LENGTH = 24


def random_model(config):
    """A model in which no bias is 0 and no scale of a norm is 1."""
    keras.utils.set_random_seed(0)
    model, random = build_model(config), np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight.numpy() + random.normal(scale=0.3, size=weight.shape))
    return model


IN_PARTS = {
    # Halves of an odd width, and an epsilon that is not the usual one.
    "in parts": small_config("transformer", num_heads=2, d_model=10, layer_norm_epsilon=0.1),
    "in parts, post-norm": small_config(
        "transformer", num_heads=2, norm_first=False, layer_norm_epsilon=0.1
    ),
}


@pytest.fixture(scope="module", params=[*TRANSFORMERS, *IN_PARTS])
def models(request):
    in_parts = request.param in IN_PARTS
    model = random_model({**CONFIGS, **IN_PARTS}[request.param])
    with pytest.MonkeyPatch.context() as patch:
        if in_parts:
            patch.setattr("tf_transformer.export.folding._WIDTH_OF_PARTS", 1)
        frozen = freeze(model, MAX_LENGTH)
    assert len(frozen._read()["decoder"][0][0].parts) == 1 + in_parts
    return model, frozen


def test_logits_and_attention_are_those_of_the_model(models):
    model, frozen = models
    inputs = batch(model.config)
    expected, attention = model(inputs, training=False, return_attention_scores=True)
    logits, found = frozen(inputs, training=False, return_attention_scores=True)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(frozen(inputs), logits, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(found["cross"], attention["cross"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_each_step_gives_the_logits_of_teacher_forcing(models):
    model, frozen = models
    inputs = batch(model.config)
    expected = model(inputs, training=False).numpy()
    cache = frozen.start_decoding(tf.constant(inputs["source_ids"]))
    for index, token_ids in enumerate(np.array(inputs["target_ids"]).T):
        logits, cache = frozen.decode_step(tf.constant(token_ids), tf.constant(index), cache)
        known, added = np.split(logits.numpy(), [model.config.target_vocab_size], axis=1)
        np.testing.assert_allclose(known, expected[:, index], rtol=1e-5, atol=1e-5)
        assert (added == -np.inf).all()


SOME = pytest.mark.parametrize("models", ["transformer", "in parts, post-norm"], indirect=True)


@SOME
def test_a_beam_search_finds_what_the_model_finds(models):
    model, frozen = models
    ids = {"pad_id": model.config.pad_id, "bos_id": 2, "eos_id": 1}
    sources, limits = tf.constant(batch(model.config)["source_ids"]), tf.constant([9, 9])
    expected, found = (
        beam_search(each.decode_step, each.start_decoding(sources), limits, beam_size=3, **ids)
        for each in (model, frozen)
    )
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-4)


def test_products_in_bfloat16_are_nearly_those_of_float32():
    model = random_model(CONFIGS["transformer, post-norm"])
    half = freeze(model, MAX_LENGTH, "bfloat16")
    inputs = batch(model.config)
    expected = model(inputs, training=False).numpy()
    difference = np.abs(half(inputs).numpy() - expected)
    assert 1e-5 < difference.max() < 0.1 * np.abs(expected).max()


def test_other_models_are_exported_as_they_are():
    assert all(
        not isinstance(freeze(model, MAX_LENGTH), FrozenTransformer)
        for model in (build_model(CONFIGS["luong"]), build_model(CONFIGS["prefix_lm"]))
    )
    quantized = build_model(dataclasses.replace(CONFIGS["transformer"], d_model=24))
    quantized.output_projection.embedding.quantize("int8")
    assert freeze(quantized, MAX_LENGTH) is quantized


@SOME
def test_later_training_does_not_change_what_was_frozen(models):
    model, frozen = models
    source_ids = tf.constant(SOURCE)
    before = frozen({"source_ids": source_ids, "target_ids": source_ids}).numpy()
    weight = model.trainable_weights[0]
    old = weight.numpy()
    weight.assign(old + 1)
    after = frozen({"source_ids": source_ids, "target_ids": source_ids}).numpy()
    weight.assign(old)
    np.testing.assert_array_equal(after, before)


def test_a_batch_may_be_empty(models):
    _, frozen = models
    ids = tf.zeros([0, 0], tf.int32)
    assert frozen({"source_ids": ids, "target_ids": ids}).shape[0] == 0
    limits = tf.zeros([0], tf.int32)
    special = {"pad_id": 0, "bos_id": 2, "eos_id": 1}
    for search, options in ((greedy_search, {}), (beam_search, {"beam_size": 3})):
        cache = frozen.start_decoding(ids)
        assert search(frozen.decode_step, cache, limits, **special, **options).ids.shape[0] == 0
