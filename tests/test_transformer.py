"""Tests of what is the Transformer's own: its equations, and int8."""

import dataclasses

import keras
import numpy as np
import numpy_transformer
import pytest
from small_models import CONFIGS, architecture_of, batch, decoded, small_model

from tf_transformer.models.model_configs import TransformerConfig
from tf_transformer.models.transformer import Transformer


@pytest.mark.parametrize(
    ("changes", "vocabulary", "count"),
    [
        # 6 encoder layers of 3,152,384, 6 decoder layers of 4,204,032; norms 2,048; V (512).
        ({}, 37_000, 63_084_544),
        # The same layers with V = 100. An untied output also has a bias.
        ({"tie_embeddings": False}, 100, 44_140_544 + 3 * 100 * 512 + 100),
        ({"positions": "learned"}, 100, 44_140_544 + 100 * 512 + 2 * 512 * 512),
        ({"tie_embeddings": False, "tie_output": True}, 100, 44_140_544 + 2 * 100 * 512),
    ],
)
def test_matrices_are_shared_as_configured(changes, vocabulary, count):
    assert Transformer(TransformerConfig(vocabulary, vocabulary, **changes)).count_params() == count


@pytest.mark.parametrize("name", [n for n in CONFIGS if architecture_of(n) == "transformer"])
def test_logits_and_scores_equal_the_papers_equations(name, randomise):
    model = randomise(small_model(name))
    config, inputs = model.config, batch(model.config)
    logits, scores = model(inputs, return_attention_scores=True)
    expected, expected_scores = numpy_transformer.logits(model, inputs)
    assert logits.shape == (2, 6, config.target_vocab_size)
    np.testing.assert_allclose(logits, expected, atol=2e-4)
    np.testing.assert_allclose(model(inputs), logits, atol=1e-6)
    assert scores.keys() == expected_scores.keys()
    for kind, shape in {"encoder": (5, 5), "decoder": (6, 6), "cross": (6, 5)}.items():
        layers = 3 if kind == "encoder" else model.config.decoder_layers or 3
        assert [tuple(layer.shape) for layer in scores[kind]] == [(2, 3, *shape)] * layers
        for layer, reference in zip(scores[kind], expected_scores[kind], strict=True):
            np.testing.assert_allclose(layer, reference, atol=1e-4)


INT8 = TransformerConfig(200, 200, num_layers=2, d_model=64, num_heads=4, d_ff=128)


@pytest.mark.slow
# Keras warns of each layer without an int8 form.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize")
@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({}, "float32"), ({}, "mixed_bfloat16"), ({"tie_embeddings": False}, "float32"),
        ({"positions": "learned", "activation": "gelu"}, "float32"),
    ],
    ids=["tied", "mixed_bfloat16", "untied", "learned positions, gelu"],
)  # fmt: skip
def test_int8_logits_are_near_the_float_ones(changes, policy):
    keras.utils.set_random_seed(1)
    model = Transformer(dataclasses.replace(INT8, **changes), dtype=policy)
    rng = np.random.default_rng(0)
    inputs = {
        "source_ids": rng.integers(4, 200, (8, 9)),
        "target_ids": rng.integers(4, 200, (8, 10)),
    }
    exact = np.asarray(model(inputs))
    model.quantize("int8")
    logits = np.asarray(model(inputs))
    assert model.encoder.layers[0].feed_forward.expand.kernel.dtype == "int8"
    assert model.target_embedding.embedding.embeddings.dtype == "int8"
    norms = np.linalg.norm(exact, axis=-1) * np.linalg.norm(logits, axis=-1)
    assert ((exact * logits).sum(axis=-1) / norms).min() > 0.999
    assert (exact.argmax(axis=-1) == logits.argmax(axis=-1)).mean() > 0.9
    # An error in the last bit before rounding to int8 is one of 1/127 of the largest after it.
    tolerance = 0.02 if policy == "float32" else 0.2
    np.testing.assert_allclose(decoded(model, **inputs), logits, atol=tolerance)
