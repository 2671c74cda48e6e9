"""The architectures: each has a configuration, a model class and presets.

A new architecture is a file in `models/` and a row of `ARCHITECTURES`. Nothing here imports Keras:
the command line reads the settings long before a model is built.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tf_transformer.errors import ConfigError, did_you_mean
from tf_transformer.settings import require, require_positive, require_rate, setting


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The configuration of a Transformer (Vaswani et al. 2017, table 3).

    The vocabularies and `pad_id` come from the tokenizers (`with_tokenizers`), all else from the
    table `[model]` of run.toml.

    Attributes:
        source_vocab_size: V of the source; None until the tokenizer is known.
        target_vocab_size: V of the target; None until the tokenizer is known.
        num_layers: Encoder layers, and as many decoder layers.
        d_model: D, even and a multiple of `num_heads`.
        num_heads: H.
        d_ff: Width of the feed-forward networks.
        dropout_rate: Dropout of embeddings and of each sub-layer's output (section 5.4).
        attention_dropout_rate: Dropout of the attention weights (not in the paper).
        norm_first: Whether to normalise before each sub-layer; False is the paper's post-norm.
        tie_embeddings: Whether source, target and output share one matrix (section 3.4).
        pad_id: The id of padding in both vocabularies.

    Raises:
        ConfigError: A size is not positive, a rate not in [0, 1), `d_model` odd or no multiple of
            `num_heads`, `pad_id` outside the vocabularies, or these differ and are to be tied.
    """

    source_vocab_size: int | None = None
    target_vocab_size: int | None = None
    num_layers: int = setting(6, "encoder layers, and as many decoder layers")
    d_model: int = setting(512, "width of the model")
    num_heads: int = setting(8, "attention heads")
    d_ff: int = setting(2048, "width of the feed-forward networks")
    dropout_rate: float = setting(0.1, "dropout of embeddings and sub-layers")
    attention_dropout_rate: float = setting(0.0, "dropout of attention weights")
    norm_first: bool = setting(True, "normalise before each sub-layer; the paper: after")
    tie_embeddings: bool = setting(
        True, "one matrix for source, target and output; default: if the vocabulary is joint"
    )
    pad_id: int = 0

    def __post_init__(self) -> None:
        """Checks the values."""
        sizes = ("source_vocab_size", "target_vocab_size", "num_layers", "d_model", "num_heads")
        require_positive(self, *sizes, "d_ff")
        require_rate(self, "dropout_rate", "attention_dropout_rate")
        require(
            self.d_model % self.num_heads == 0, "d_model", self.d_model,
            f"a multiple of num_heads={self.num_heads}",
        )  # fmt: skip
        require(self.d_model % 2 == 0, "d_model", self.d_model, "even")
        known = [v for v in (self.source_vocab_size, self.target_vocab_size) if v is not None]
        is_id = 0 <= self.pad_id < min(known, default=self.pad_id + 1)
        require(is_id, "pad_id", self.pad_id, f"an id below {min(known, default=0)}")
        if self.tie_embeddings and len(set(known)) > 1:
            raise ConfigError(
                f"tie_embeddings=True needs one vocabulary for both sides; received "
                f"source_vocab_size={self.source_vocab_size}, "
                f"target_vocab_size={self.target_vocab_size}. "
                f"Train a joint tokenizer or set tie_embeddings=False."
            )

    def require_vocabularies(self) -> None:
        """Raises a `ConfigError` unless the sizes of the vocabularies are known."""
        for name in ("source_vocab_size", "target_vocab_size"):
            require(getattr(self, name) is not None, name, None, "given to build a model")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; `TransformerConfig(**d)` is the way back."""
        return dataclasses.asdict(self)


def _transformer() -> type:
    from tf_transformer.models.transformer import Transformer

    return Transformer


class Architecture(NamedTuple):
    """One architecture.

    Attributes:
        config: The dataclass of its configuration.
        model: Returns the class of its model, imported on the first call.
        presets: The settings of each preset, by name.
    """

    config: type
    model: Callable[[], type]
    presets: Mapping[str, Mapping[str, Any]]


def _sizes(num_layers: int, d_model: int, d_ff: int, num_heads: int) -> dict[str, int]:
    return {"num_layers": num_layers, "d_model": d_model, "d_ff": d_ff, "num_heads": num_heads}


ARCHITECTURES: dict[str, Architecture] = {
    "transformer": Architecture(
        TransformerConfig,
        _transformer,
        {
            "tiny": _sizes(4, 128, 256, 4),  # Wu et al. 2021, for small corpora
            "small": _sizes(4, 128, 512, 8),  # TensorFlow's tutorial
            "base": _sizes(6, 512, 2048, 8),  # Vaswani et al. 2017
            "big": _sizes(6, 1024, 4096, 16),  # Vaswani et al. 2017
        },
    ),
}


def architecture_name(config: Any) -> str:
    """The name of the architecture that a configuration belongs to."""
    return next(name for name, row in ARCHITECTURES.items() if row.config is type(config))


def preset(
    name: str,
    source_vocab_size: int | None = None,
    target_vocab_size: int | None = None,
    *,
    architecture: str = "transformer",
) -> Any:
    """The configuration of a preset; change single fields with `dataclasses.replace`.

    Args:
        name: `"tiny"`, `"small"`, `"base"` or `"big"`.
        source_vocab_size: V of the source.
        target_vocab_size: V of the target; embeddings are tied where both are equal.
        architecture: A key of `ARCHITECTURES`.

    Raises:
        ConfigError: The name is unknown.
    """
    row = ARCHITECTURES[architecture]
    if name not in row.presets:
        raise ConfigError(f"unknown preset {name!r}: {did_you_mean(name, row.presets)}")
    return row.config(
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        tie_embeddings=source_vocab_size == target_vocab_size,
        **row.presets[name],
    )


def with_tokenizers(config: Any, source_tokenizer: Any, target_tokenizer: Any) -> Any:
    """The configuration with the vocabularies and the padding id of two tokenizers."""
    return dataclasses.replace(
        config,
        source_vocab_size=source_tokenizer.vocab_size,
        target_vocab_size=target_tokenizer.vocab_size,
        pad_id=target_tokenizer.pad_id,
    )


def build_model(config: Any, dtype: Any = None) -> Any:
    """An untrained model.

    Args:
        config: The configuration of one of the `ARCHITECTURES`, vocabularies included.
        dtype: A Keras dtype policy, such as `"mixed_bfloat16"`; None is the global one.

    Returns:
        A `keras.Model`.
    """
    return ARCHITECTURES[architecture_name(config)].model()(config, dtype=dtype)
