"""A small model of every architecture, for the tests that all of them must pass."""

import dataclasses
import inspect

import numpy as np
import pytest
import tensorflow as tf

from tf_transformer.models.architectures import ARCHITECTURES, build_model
from tf_transformer.models.model_configs import ModelConfig

# Three layers, because a mask may get lost after the first. A model takes the sizes that it has.
SIZES = {"num_layers": 3, "d_model": 12, "num_heads": 3, "d_ff": 20, "num_units": 10}
UNTIED = {"tie_embeddings": False, "target_vocab_size": 11}
# What else is tried of an architecture: the name of the variant, and its settings.
OTHER_STACK = {**UNTIED, "norm_first": False, "pad_id": 3}
BERT = {
    "norm_first": False, "activation": "gelu", "positions": "learned", "max_positions": 16,
    "scale_embeddings": False, "layer_norm_epsilon": 1e-12, "embedding_norm": True,
    "output_transform": True, "output_bias": True,
}  # fmt: skip
VARIANTS = {
    "prefix_lm": {
        "post-norm, untied, pad 3": OTHER_STACK,
        "as BERT": {**BERT, "begin_source": True},
    },
    "causal_lm": {"post-norm, untied, pad 3": OTHER_STACK, "as BERT": BERT},
    "permutation_lm": {"as BERT": BERT},
    "masked_lm": {"as BERT": BERT},
    "luong": {
        "dot, without input feeding": {"attention_score": "dot", "input_feeding": False},
        "concat, local, untied": {**UNTIED, "attention_score": "concat", "attention_window": 2},
    },
    "transformer": {
        "post-norm": {"norm_first": False, "activation": "swish"},
        "untied": UNTIED,
        "post-norm, untied, pad 3": OTHER_STACK,
        "other choices": {
            **UNTIED, "tie_output": True, "activation": "gelu",
            "positions": "learned", "max_positions": 32,
        },
        "as other engines": {
            "norm_first": False, "activation": "swish", "decoder_layers": 1, "output_bias": True,
            "scale_embeddings": False, "layer_norm_epsilon": 0.1, "positions": "sinusoidal_halves",
            "first_position": 2,
        },
    },
}  # fmt: skip


def has_setting(architecture: str, name: str) -> bool:
    """Whether the models of an architecture have a setting."""
    fields = dataclasses.fields(ARCHITECTURES[architecture].config)
    return name in [field.name for field in fields]


def small_config(architecture: str, **changes) -> ModelConfig:
    """A small configuration, with vocabularies of 13 unless told."""
    sizes = {name: size for name, size in SIZES.items() if has_setting(architecture, name)}
    vocabularies = {"source_vocab_size": 13, "target_vocab_size": 13}
    return ARCHITECTURES[architecture].config(**{**vocabularies, **sizes, **changes})


CONFIGS = {
    name if not variant else f"{name}, {variant}": small_config(name, **changes)
    for name in ARCHITECTURES
    for variant, changes in {"": {}, **VARIANTS.get(name, {})}.items()
}
# The Transformer and one model of each other family, and those that differ in all that can differ.
ONE_EACH = ["transformer", "luong", "prefix_lm"]
FEW = [
    *ONE_EACH,
    "transformer, post-norm, untied, pad 3",
    "transformer, other choices",
    "transformer, as other engines",
    "prefix_lm, as BERT",
]

SOURCE = np.array([[5, 6, 7, 8, 9], [4, 9, 0, 0, 0]], "int32")
TARGET = np.array([[2, 7, 1, 10, 4, 6], [2, 8, 5, 0, 0, 0]], "int32")


def every(names, ways=None, fast=()):
    """Parametrizes by names of models; other architectures than the first are slow, unless `fast`.

    Every model is called in the first way, and one of each kind in the others.
    """

    def marks(name):
        is_fast = name in fast or architecture_of(name) == "transformer"
        return () if is_fast else pytest.mark.slow

    if ways is None:
        return pytest.mark.parametrize("name", [pytest.param(n, marks=marks(n)) for n in names])
    first, *others = ways
    pairs = [(n, first) for n in names] + [(n, way) for n in ONE_EACH for way in others]
    pairs = [pytest.param(*pair, marks=marks(pair[0])) for pair in pairs]
    return pytest.mark.parametrize(("name", "way"), pairs)


def batch(config, source=SOURCE, target=TARGET):
    """The inputs, padded with the configuration's own id."""
    return {
        "source_ids": np.where(source == 0, config.pad_id, source),
        "target_ids": np.where(target == 0, config.pad_id, target),
    }


def decoded(model, source_ids, target_ids, in_graph=False):
    """The logits `(B, T, V)` of given targets, by one decoding step after the other."""
    start, step = model.start_decoding, model.decode_step
    if in_graph:
        start = tf.function(start)
        step = tf.function(step, reduce_retracing=True)
    cache, steps = start(tf.constant(source_ids)), []
    for index in range(target_ids.shape[1]):
        logits, cache = step(tf.constant(target_ids[:, index]), tf.constant(index), cache)
        steps.append(np.asarray(logits))
    return np.stack(steps, axis=1)


def architecture_of(name):
    """The architecture of a key of `CONFIGS`."""
    return name.split(",")[0]


def has_attention_scores(name):
    """Whether a call of the model can return its attention weights."""
    call = ARCHITECTURES[architecture_of(name)].model().call
    return "return_attention_scores" in inspect.signature(call).parameters


GENERATING = [name for name in CONFIGS if ARCHITECTURES[architecture_of(name)].config.translates]
ALIGNING = [name for name in GENERATING if has_attention_scores(name)]


def small_model(name, dtype=None):
    """The model of a key of `CONFIGS`, with the weights it begins with."""
    return build_model(CONFIGS[name], dtype)
