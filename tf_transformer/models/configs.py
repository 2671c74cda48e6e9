"""The configurations of the models: frozen, validated dataclasses that need no Keras."""

import dataclasses
from typing import Any

from tf_transformer.errors import ConfigError
from tf_transformer.settings import (
    recipe_settings,
    require,
    require_choices,
    require_positive,
    require_rate,
    setting,
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What the configurations of all architectures share.

    The vocabularies and `pad_id` come from the tokenizers (`with_tokenizers`), all else from the
    table `[model]` of run.toml.

    Attributes:
        source_vocab_size: V of the source; None until the tokenizer is known.
        target_vocab_size: V of the target; None until the tokenizer is known.
        d_model: D.
        dropout_rate: Dropout of embeddings and layers; None in a run's configuration until it is
            chosen.
        tie_embeddings: Whether source, target and output share one matrix (Press & Wolf 2016).
        pad_id: The id of padding in both vocabularies.

    Raises:
        ConfigError: A size is not positive, a rate not in [0, 1), `pad_id` outside the
            vocabularies, or these differ and are to be tied.
    """

    source_vocab_size: int | None = None
    target_vocab_size: int | None = None
    d_model: int = setting(512, "width of the model")
    dropout_rate: float | None = setting(0.1, "dropout of embeddings and layers", recipe=True)
    tie_embeddings: bool = setting(
        True, "one matrix for source, target and output; default: if the vocabulary is joint"
    )
    pad_id: int = 0

    def __post_init__(self) -> None:
        """Checks the values."""
        require_positive(self, "source_vocab_size", "target_vocab_size", "d_model")
        require_rate(self, "dropout_rate")
        known = [v for v in (self.source_vocab_size, self.target_vocab_size) if v is not None]
        is_id = 0 <= self.pad_id < min(known, default=self.pad_id + 1)
        need = f"an id below {min(known)}" if known else "at least 0"
        require(is_id, "pad_id", self.pad_id, need)
        if self.tie_embeddings and len(set(known)) > 1:
            raise ConfigError(
                f"tie_embeddings=True needs one vocabulary for both sides; received "
                f"source_vocab_size={self.source_vocab_size}, "
                f"target_vocab_size={self.target_vocab_size}. "
                f"Train a joint tokenizer or set tie_embeddings=False."
            )

    @property
    def position_limit(self) -> int | None:
        """The most positions of a sequence, its begin token included; None for any number."""
        return None

    def require_complete(self) -> None:
        """Raises a `ConfigError` unless the vocabularies and the dropout rates are known."""
        for name in ("source_vocab_size", "target_vocab_size", *recipe_settings(type(self))):
            require(getattr(self, name) is not None, name, None, "given to build a model")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; `type(config)(**d)` is the way back."""
        return dataclasses.asdict(self)


def require_width(d_model: int, num_heads: int) -> None:
    """Raises a `ConfigError` unless heads and sinusoids divide the width evenly."""
    require(d_model % num_heads == 0, "d_model", d_model, f"a multiple of num_heads={num_heads}")
    require(d_model % 2 == 0, "d_model", d_model, "even")


@dataclasses.dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The configuration of a Transformer (Vaswani et al. 2017, table 3).

    Attributes:
        d_model: D, even and a multiple of `num_heads`.
        dropout_rate: Dropout of embeddings and of each sub-layer's output (section 5.4).
        tie_embeddings: As in section 3.4.
        num_layers: Encoder layers, and as many decoder layers.
        num_heads: H.
        d_ff: Width of the feed-forward networks.
        attention_dropout_rate: Dropout of the attention weights (not in the paper); None in a run's
            configuration until it is chosen.
        norm_first: Whether to normalise before each sub-layer; False is the paper's post-norm.
        activation: Of the feed-forward networks; the paper's is relu.
        positions: Sinusoids (section 3.5), or a trained table of each side (table 3, row E).
        max_positions: Rows of these tables: one more than the tokens of the longest sentence.
        attention_radius: How far self-attention looks (section 4), None for any distance. The
            encoder looks to both sides, the decoder back.
        tie_output: Whether target and output share one matrix where the source has its own (Press
            & Wolf 2016); with `tie_embeddings` all three do.

    Raises:
        ConfigError: As in `ModelConfig`, `d_model` is odd or no multiple of `num_heads`, or a
            choice is unknown.
    """

    num_layers: int = setting(6, "encoder layers, and as many decoder layers")
    num_heads: int = setting(8, "attention heads")
    d_ff: int = setting(2048, "width of the feed-forward networks")
    attention_dropout_rate: float | None = setting(0.0, "dropout of attention weights", recipe=True)
    norm_first: bool = setting(True, "normalise before each sub-layer; the paper: after")
    activation: str = setting(
        "relu", "of the feed-forward networks", choices=("relu", "gelu", "swish")
    )
    positions: str = setting(
        "sinusoidal", "how tokens know their places", choices=("sinusoidal", "learned")
    )
    max_positions: int = setting(512, "learned positions; at least max_length + 1")
    attention_radius: int | None = setting(
        None, "positions to each side that self-attention looks at; default: all"
    )
    tie_output: bool = setting(
        False, "one matrix for target and output, where the source has a vocabulary of its own"
    )

    def __post_init__(self) -> None:
        """Checks the values."""
        super().__post_init__()
        require_positive(
            self, "num_layers", "num_heads", "d_ff", "max_positions", "attention_radius"
        )
        require_choices(self)
        require_rate(self, "attention_dropout_rate")
        require_width(self.d_model, self.num_heads)

    @property
    def position_limit(self) -> int | None:
        """`max_positions` where positions are learned; None for sinusoids, which have no end."""
        return {"sinusoidal": None, "learned": self.max_positions}[self.positions]
