"""The configurations of the models: frozen, validated dataclasses that need no Keras."""

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)
Rate = Annotated[float, Field(ge=0, lt=1)]


def setting(default: Any, help_text: str) -> Any:
    """A field that is also a key of run.toml and an option of the command line."""
    return Field(default, description=help_text)


def fields_of(config: type) -> dict[str, FieldInfo]:
    """Returns the settings of a configuration by name: its fields with a description."""
    fields = config.__pydantic_fields__.items()
    return {name: field for name, field in fields if field.description}


@dataclass(frozen=True, config=CHECKED)
class ModelConfig:
    """What the configurations of all architectures share.

    The vocabularies and `pad_id` come from the tokenizers (`with_tokenizers`), all other fields
    from the table `[model]` of run.toml.

    Attributes:
        source_vocab_size: V of the source; None until the tokenizer is known.
        target_vocab_size: V of the target; None until the tokenizer is known.
        d_model: D.
        dropout_rate: Dropout of embeddings and layers; None in a run's configuration until it is
            chosen.
        tie_embeddings: Whether source, target and output share one matrix (Press & Wolf 2016).
        pad_id: The id of padding in both vocabularies.

    Raises:
        pydantic.ValidationError: A value is out of range, `pad_id` is outside the vocabularies, or
            these differ and are to be tied.
    """

    source_vocab_size: PositiveInt | None = None
    target_vocab_size: PositiveInt | None = None
    d_model: PositiveInt = setting(512, "width of the model")
    dropout_rate: Rate | None = setting(0.1, "dropout of embeddings and layers")
    tie_embeddings: bool = setting(
        True,
        "one matrix for source, target and output; default: if the vocabulary is joint",
    )
    pad_id: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check_vocabularies(self) -> "ModelConfig":
        known = {v for v in (self.source_vocab_size, self.target_vocab_size) if v is not None}
        for name in ("pad_id", "bos_id", "eos_id", "mask_id"):
            value = getattr(self, name, 0)
            if known and value >= min(known):
                raise ValueError(f"{name}={value} is not an id below {min(known)}.")
        if self.tie_embeddings and len(known) > 1:
            raise ValueError(
                f"tie_embeddings=True needs one vocabulary for both sides; received "
                f"source_vocab_size={self.source_vocab_size}, "
                f"target_vocab_size={self.target_vocab_size}. "
                f"Train a joint tokenizer or set tie_embeddings=False."
            )
        return self

    @property
    def position_limit(self) -> int | None:
        """The most positions of a sequence, its begin token included; None for any number."""
        return None

    def require_complete(self) -> None:
        """Raises a ValueError unless the vocabularies and the dropout rates are known."""
        for name in ("source_vocab_size", "target_vocab_size", "dropout_rate"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} must be given to build a model.")

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values; `type(config)(**d)` is the way back."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, config=CHECKED)
class AttentionConfig(ModelConfig):
    """What the configurations of all stacks of multi-head attention share.

    Attributes:
        d_model: D, even and a multiple of `num_heads`.
        num_layers: Layers; of a Transformer's encoder, and as many of its decoder.
        num_heads: H.
        d_ff: Width of the feed-forward networks.
        attention_dropout_rate: Dropout of the attention weights (not in the paper); None in a run's
            configuration until it is chosen.
        norm_first: Whether to normalise before each sub-layer; False is the paper's post-norm.

    Raises:
        pydantic.ValidationError: As in `ModelConfig`, or `d_model` is odd or no multiple of
            `num_heads`.
    """

    num_layers: PositiveInt = setting(6, "layers; of an encoder and of its decoder each")
    num_heads: PositiveInt = setting(8, "attention heads")
    d_ff: PositiveInt = setting(2048, "width of the feed-forward networks")
    attention_dropout_rate: Rate | None = setting(0.0, "dropout of attention weights")
    norm_first: bool = setting(True, "normalise before each sub-layer; the paper: after")

    @model_validator(mode="after")
    def _check_width(self) -> "AttentionConfig":
        for divisor, need in (
            (self.num_heads, f"a multiple of num_heads={self.num_heads}"),
            (2, "even"),
        ):
            if self.d_model % divisor:
                raise ValueError(f"d_model must be {need}; received d_model={self.d_model}.")
        return self


@dataclass(frozen=True, config=CHECKED)
class TransformerConfig(AttentionConfig):
    """The configuration of a Transformer (Vaswani et al. 2017, table 3).

    Attributes:
        activation: Activation of the feed-forward networks; the paper's is relu.
        positions: Sinusoids (section 3.5), or a trained table of each side (table 3, row E).
        max_positions: Rows of these tables: one more than the tokens of the longest sentence.
        attention_radius: How far self-attention looks (section 4), None for any distance. The
            encoder looks to both sides, the decoder back.
        tie_output: Whether target and output share one matrix where the source has its own (Press
            & Wolf 2016); with `tie_embeddings` all three do.
    """

    activation: Literal["relu", "gelu", "swish"] = setting("relu", "of the feed-forward networks")
    positions: Literal["sinusoidal", "learned"] = setting(
        "sinusoidal", "how tokens know their places"
    )
    max_positions: PositiveInt = setting(512, "learned positions, above max_length")
    attention_radius: PositiveInt | None = setting(
        None, "positions to each side that self-attention looks at; default: all"
    )
    tie_output: bool = setting(
        False,
        "one matrix for target and output, where the source has its own vocabulary",
    )

    @property
    def position_limit(self) -> int | None:
        """`max_positions` where positions are learned; None for sinusoids, which have no end."""
        return self.max_positions if self.positions == "learned" else None
