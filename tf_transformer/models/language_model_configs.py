"""The configurations of the language models: one stack of self-attention, one task each."""

import dataclasses

from tf_transformer.models.configs import ModelConfig, require_width
from tf_transformer.settings import require, require_positive, require_rate, setting


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(ModelConfig):
    """What the configurations of the language models share.

    Attributes:
        d_model: D, even and a multiple of `num_heads`.
        num_layers: Layers, which source and target share.
        num_heads: H.
        d_ff: Width of the feed-forward networks.
        attention_dropout_rate: Dropout of the attention weights; None in a run's configuration
            until it is chosen.
        norm_first: Whether to normalise before each sub-layer; False is post-norm.

    Raises:
        ConfigError: As in `ModelConfig`, or `d_model` is odd or no multiple of `num_heads`.
    """

    num_layers: int = setting(12, "layers")
    num_heads: int = setting(8, "attention heads")
    d_ff: int = setting(2048, "width of the feed-forward networks")
    attention_dropout_rate: float | None = setting(0.0, "dropout of attention weights", recipe=True)
    norm_first: bool = setting(True, "normalise before each sub-layer; post-norm: after")

    def __post_init__(self) -> None:
        """Checks the values."""
        super().__post_init__()
        require_positive(self, "num_layers", "num_heads", "d_ff")
        require_rate(self, "attention_dropout_rate")
        require_width(self.d_model, self.num_heads)

    def _require_id(self, name: str, *vocab_sizes: int | None) -> None:
        value, known = getattr(self, name), [size for size in vocab_sizes if size is not None]
        need = f"an id below {min(known)}" if known else "at least 0"
        require(0 <= value < min(known, default=value + 1), name, value, need)


@dataclasses.dataclass(frozen=True)
class PrefixLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `PrefixLanguageModel`."""


@dataclasses.dataclass(frozen=True)
class CausalLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `CausalLanguageModel`.

    Attributes:
        bos_id: The token that targets begin with; like `pad_id` it comes from the tokenizers.
    """

    bos_id: int = 2

    def __post_init__(self) -> None:
        """Checks the values."""
        super().__post_init__()
        self._require_id("bos_id", self.source_vocab_size, self.target_vocab_size)


@dataclasses.dataclass(frozen=True)
class PermutationLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `PermutationLanguageModel`."""


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `MaskedLanguageModel`.

    Both ids are of the target, and like `pad_id` they come from the tokenizers.

    Attributes:
        mask_id: What is shown in place of a masked token: an id that no text has, such as that of
            unknown tokens where the tokenizer falls back to bytes.
        eos_id: The token that targets end with.
    """

    mask_id: int = 1
    eos_id: int = 3

    def __post_init__(self) -> None:
        """Checks the values."""
        super().__post_init__()
        self._require_id("mask_id", self.target_vocab_size)
        self._require_id("eos_id", self.target_vocab_size)
