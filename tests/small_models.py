"""A small model of every architecture, for the tests that all of them must pass."""

import dataclasses

import numpy as np
import pytest

from tf_transformer.inference.scoring import has_attention_scores
from tf_transformer.models.architectures import ARCHITECTURES, build_model
from tf_transformer.models.configs import ModelConfig

# Three layers, because a mask may get lost after the first. A model takes the sizes that it has.
SIZES = {"num_layers": 3, "d_model": 12, "num_heads": 3, "d_ff": 20, "num_units": 10}
UNTIED = {"tie_embeddings": False, "target_vocab_size": 11}
# What else is tried of an architecture: the name of the variant, and its settings.
OTHER_STACK = {**UNTIED, "norm_first": False, "pad_id": 3}
VARIANTS = {
    "prefix_lm": {"post-norm, untied, pad 3": OTHER_STACK},
    "causal_lm": {"post-norm, untied, pad 3": OTHER_STACK},
    "luong": {
        "dot, without input feeding": {"attention_score": "dot", "input_feeding": False},
        "concat, local, untied": {**UNTIED, "attention_score": "concat", "attention_window": 2},
    },
    "transformer": {
        "post-norm": {"norm_first": False},
        "untied": UNTIED,
        "post-norm, untied, pad 3": OTHER_STACK,
        # With this radius each padding position of `SOURCE` has a token to attend to.
        "other choices": {
            **UNTIED, "tie_output": True, "attention_radius": 3, "activation": "gelu",
            "positions": "learned", "max_positions": 32,
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
# One of each architecture, and those that differ in all that can differ.
FEW = [*ARCHITECTURES, "transformer, post-norm, untied, pad 3", "transformer, other choices"]

SOURCE = np.array([[5, 6, 7, 8, 9], [4, 9, 0, 0, 0]], "int32")
TARGET = np.array([[2, 7, 1, 10, 4, 6], [2, 8, 5, 0, 0, 0]], "int32")


def every(names):
    """Parametrizes by names of models; those of other architectures than the first are slow."""
    marks = {
        name: () if architecture_of(name) == "transformer" else pytest.mark.slow for name in names
    }
    return pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in marks.items()])


def batch(config, source=SOURCE, target=TARGET):
    """The inputs, padded with the configuration's own id."""
    return {
        "source_ids": np.where(source == 0, config.pad_id, source),
        "target_ids": np.where(target == 0, config.pad_id, target),
    }


def _models():
    return {name: ARCHITECTURES[name].model() for name in ARCHITECTURES}


def architecture_of(name):
    """The architecture of a key of `CONFIGS`."""
    return name.split(",")[0]


GENERATING = [name for name in CONFIGS if hasattr(_models()[architecture_of(name)], "decode_step")]
ALIGNING = [name for name in GENERATING if has_attention_scores(_models()[architecture_of(name)])]


def small_model(name, dtype=None):
    """The model of a key of `CONFIGS`, with the weights it begins with."""
    return build_model(CONFIGS[name], dtype)
