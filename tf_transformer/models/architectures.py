"""The architectures: each has a configuration, a model class and presets.

A new architecture is a file in `models/`, a row of `ARCHITECTURES` and two public names: that of
its model, and the same with `Config` for its configuration. Nothing here imports Keras: the command
line reads the settings long before a model is built.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from tf_transformer.errors import ConfigError, did_you_mean
from tf_transformer.models import model_configs
from tf_transformer.models.model_configs import ModelConfig


class Architecture(NamedTuple):
    """One architecture: its configuration, and the settings of each preset by name."""

    config: type[ModelConfig]
    presets: Mapping[str, Mapping[str, Any]]

    def model(self) -> type:
        """Return the class of the model by its public name; the first call imports Keras."""
        import tf_transformer

        return getattr(tf_transformer, self.config.__name__.removesuffix("Config"))


def _sizes(num_layers: int, d_model: int, d_ff: int, num_heads: int) -> dict[str, int]:
    return {"num_layers": num_layers, "d_model": d_model, "d_ff": d_ff, "num_heads": num_heads}


# All tiny models have about as many parameters as the tiny Transformer, 2.1 to 3 million with 8,000
# joint subwords; a single stack therefore has 8 layers. The papers have more layers of LSTM, but
# even a second one needs far more updates than a small corpus gives.
_TINY_STACK = {"tiny": _sizes(8, 128, 256, 4)}
_TINY_LSTM = {"tiny": {"num_layers": 1, "d_model": 224}}
_TINY_GRU = {"tiny": {"d_model": 128, "num_units": 256}}

ARCHITECTURES: dict[str, Architecture] = {
    "transformer": Architecture(
        model_configs.TransformerConfig,
        {
            "tiny": _sizes(4, 128, 256, 4),  # Wu et al. 2021, for small corpora
            "small": _sizes(4, 128, 512, 8),  # TensorFlow's tutorial
            "base": _sizes(6, 512, 2048, 8),  # Vaswani et al. 2017
            "big": _sizes(6, 1024, 4096, 16),  # Vaswani et al. 2017
        },
    ),
    "sutskever": Architecture(model_configs.SutskeverConfig, _TINY_LSTM),
    "cho": Architecture(model_configs.ChoConfig, _TINY_GRU),
    "bahdanau": Architecture(model_configs.BahdanauConfig, _TINY_GRU),
    "luong": Architecture(model_configs.LuongConfig, _TINY_LSTM),
    "prefix_lm": Architecture(model_configs.PrefixLanguageModelConfig, _TINY_STACK),
    "causal_lm": Architecture(model_configs.CausalLanguageModelConfig, _TINY_STACK),
    "permutation_lm": Architecture(model_configs.PermutationLanguageModelConfig, _TINY_STACK),
    "masked_lm": Architecture(model_configs.MaskedLanguageModelConfig, _TINY_STACK),
}


def architecture_name(config: ModelConfig) -> str:
    """Return the name of the architecture that a configuration belongs to."""
    for name, row in ARCHITECTURES.items():
        if row.config is type(config):
            return name
    raise TypeError(
        f"{config!r} is no configuration of a model, such as preset('tiny', 8000, 8000)."
    )


def require_preset(name: str, architecture: str = "transformer") -> Mapping[str, Any]:
    """Return the settings of a preset; a ConfigError for an unknown name suggests another."""
    if architecture not in ARCHITECTURES:
        advice = did_you_mean(architecture, ARCHITECTURES)
        raise ConfigError(f"unknown architecture {architecture!r}: {advice}")
    presets = ARCHITECTURES[architecture].presets
    if name not in presets:
        which = "preset" if architecture == "transformer" else f"preset of {architecture}"
        raise ConfigError(f"unknown {which} {name!r}: {did_you_mean(name, presets)}")
    return presets[name]


def preset(
    name: str,
    source_vocab_size: int | None = None,
    target_vocab_size: int | None = None,
    *,
    architecture: str = "transformer",
) -> ModelConfig:
    """Return the configuration of a preset; change single fields with `dataclasses.replace`.

    Args:
        name: `"tiny"`, or for the Transformer also `"small"`, `"base"` or `"big"`.
        source_vocab_size, target_vocab_size: V of each side; embeddings are tied if both are equal.
        architecture: A key of `ARCHITECTURES`.

    Example:
        >>> config = tt.preset("tiny", 8000, 8000)
        >>> config.d_model, config.num_layers, config.tie_embeddings
        (128, 4, True)
    """
    sizes, tied = require_preset(name, architecture), source_vocab_size == target_vocab_size
    kind = ARCHITECTURES[architecture].config
    return kind(source_vocab_size, target_vocab_size, tie_embeddings=tied, **sizes)


def with_tokenizers(
    config: ModelConfig, source_tokenizer: Any, target_tokenizer: Any
) -> ModelConfig:
    """Return the configuration with the vocabulary sizes and the special ids of two tokenizers."""
    # No text contains the id of unknown tokens, because the tokenizers fall back to bytes.
    ids = {"pad_id": "pad_id", "bos_id": "bos_id", "eos_id": "eos_id", "mask_id": "unk_id"}
    fields = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(
        config,
        source_vocab_size=source_tokenizer.vocab_size,
        target_vocab_size=target_tokenizer.vocab_size,
        **{n: getattr(target_tokenizer, of) for n, of in ids.items() if n in fields},
    )


def build_model(config: ModelConfig, dtype: Any = None) -> Any:
    """Return an untrained `keras.Model` for a configuration, with a Keras dtype policy.

    Example:
        >>> config = tt.LuongConfig(100, 100, d_model=8, num_layers=1)
        >>> model = tt.build_model(config, dtype="mixed_bfloat16")
        >>> model.name, model.count_params() > 1000
        ('luong', True)
    """
    return ARCHITECTURES[architecture_name(config)].model()(config, dtype=dtype)
