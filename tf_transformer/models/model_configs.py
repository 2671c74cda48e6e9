"""The configurations of the models: frozen, validated dataclasses that do not need Keras."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from tf_transformer.config_fields import CHECKED, Trait, setting

Rate = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=CHECKED)
class ModelConfig:
    """Base class of the configurations of all architectures.

    The vocabulary sizes V and `pad_id` come from the tokenizers (`with_tokenizers`); all other
    fields come from the table `[model]` of run.toml. Vocabulary sizes and dropout rates are None
    until they are known. With `tie_embeddings`, source, target and output share one matrix
    (Press & Wolf 2016). An invalid value raises a `pydantic.ValidationError`.

    Example:
        >>> config = tt.TransformerConfig(100, 100, num_layers=2, d_model=8, num_heads=2, d_ff=16)
        >>> config == tt.TransformerConfig(**config.to_dict())
        True
        >>> tt.ChoConfig(dropout_rate=2)
        Traceback (most recent call last):
            ...
        pydantic_core._pydantic_core.ValidationError: ...
    """

    source_vocab_size: PositiveInt | None = None
    target_vocab_size: PositiveInt | None = None
    d_model: PositiveInt = setting(512, "width of the model")
    dropout_rate: Rate | None = setting(0.1, "dropout rate of embeddings and layers", Trait.CHOSEN)
    tie_embeddings: bool = setting(True, "one matrix of embeddings and output; default: as --joint")
    pad_id: NonNegativeInt = 0
    # The number of learned positions; None for no limit.
    position_limit: ClassVar[int | None] = None
    packs: ClassVar[bool] = False  # whether the model takes packed rows
    # Whether text without translations can train the model: a source may be only the end token.
    trains_on_text: ClassVar[bool] = False
    translates: ClassVar[bool] = True  # rather than only scores text

    @model_validator(mode="after")
    def _check_vocabularies(self) -> "ModelConfig":
        known = {v for v in (self.source_vocab_size, self.target_vocab_size) if v is not None}
        for name in ("pad_id", "bos_id", "eos_id", "mask_id"):
            value = getattr(self, name, 0)
            if known and value >= min(known):
                raise ValueError(f"{name}={value} must be below the vocabulary size {min(known)}.")
        if self.tie_embeddings and len(known) > 1:
            raise ValueError(
                f"tie_embeddings=True needs one vocabulary for both sides; received "
                f"source_vocab_size={self.source_vocab_size}, "
                f"target_vocab_size={self.target_vocab_size}. "
                f"Train a joint tokenizer or set tie_embeddings=False."
            )
        return self

    def num_positions(self, max_length: int) -> int:
        """Return the number of positions of texts of `max_length` tokens, the end included."""
        return max_length + 1  # of the begin token and `max_length` tokens after it

    def lack_of_positions(self, max_length: int) -> str:
        """Return a line that says that texts of `max_length` tokens are too long, or ""."""
        limit, needed = self.position_limit, self.num_positions(max_length)
        if limit is None or needed <= limit:
            return ""
        return f"{max_length=} needs {needed} positions, but the model has max_positions={limit}."

    def to_dict(self) -> dict[str, Any]:
        """Return the fields `d` as plain values, from which `type(config)(**d)` restores them."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, config=CHECKED)
class AttentionConfig(ModelConfig):
    """Base class of the configurations of all models with multi-head attention.

    `d_model` is even and a multiple of `num_heads`. Vaswani et al. 2017 use no dropout of attention
    weights, and normalise as with `norm_first=False`. Positions are sinusoids (section 3.5) in one
    of the layouts of `SINUSOIDS`, or a trained table (table 3, row E) with `max_positions` rows.
    """

    num_layers: PositiveInt = setting(6, "layers of each stack")
    num_heads: PositiveInt = setting(8, "attention heads")
    d_ff: PositiveInt = setting(2048, "width of the feed-forward networks")
    attention_dropout_rate: Rate | None = setting(0.0, "dropout of attention", Trait.CHOSEN)
    norm_first: bool = setting(True, "normalise before each sub-layer, not after as in the paper")
    layer_norm_epsilon: PositiveFloat = setting(1e-6, "added to the variance when normalising")
    activation: Literal["relu", "gelu", "swish"] = setting("relu", "feed-forward activation")
    positions: Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_tensor2tensor", "learned"] = (
        setting("sinusoidal", "how token positions are encoded")
    )
    first_position: NonNegativeInt = setting(0, "number of the first position, if not learned")
    max_positions: PositiveInt = setting(512, "number of learned positions, more than max_length")
    output_bias: bool = setting(False, "add a bias to the logits of a shared output matrix, too")
    scale_embeddings: bool = setting(True, "multiply embeddings by the square root of d_model")

    @model_validator(mode="after")
    def _check_width(self) -> "AttentionConfig":
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model={self.d_model} is not a multiple of num_heads={self.num_heads}."
            )
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is not even.")
        return self

    @property
    def position_limit(self) -> int | None:
        """`max_positions` if positions are learned; None for sinusoids, which have no limit."""
        return self.max_positions if self.positions == "learned" else None


@dataclass(frozen=True, config=CHECKED)
class TransformerConfig(AttentionConfig):
    """The configuration of a Transformer (Vaswani et al. 2017, table 3).

    With learned positions, each side has a table. With `tie_output`, target and output share one
    matrix even if the source has its own (Press & Wolf 2016).
    """

    packs: ClassVar[bool] = True
    num_layers: PositiveInt = setting(6, "layers of the encoder, and of the decoder unless given")
    decoder_layers: PositiveInt | None = setting(None, "decoder layers; default: the encoder's")
    tie_output: bool = setting(False, "one matrix for target and output; the source has its own")


@dataclass(frozen=True, config=CHECKED)
class LanguageModelConfig(AttentionConfig):
    """Base class of the configurations of the language models, which have one stack of layers.

    `embedding_norm` and `output_transform` are BERT's (Devlin et al. 2019).
    """

    num_layers: PositiveInt = setting(12, "layers, which source and target share")
    embedding_norm: bool = setting(False, "normalise the sum of token, position and segment")
    output_transform: bool = setting(False, "put a layer and a norm before the output matrix")

    def num_positions(self, max_length: int) -> int:
        """Return the number of positions of a source and a target, which follows the source."""
        return 2 * max_length + 1


@dataclass(frozen=True, config=CHECKED)
class PrefixLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `PrefixLanguageModel`; with `begin_source` it knows `bos_id`."""

    begin_source: bool = setting(False, "put the begin token before the source, not the target")
    bos_id: NonNegativeInt = 2

    @property
    def packs(self) -> bool:
        """Whether the model takes packed rows, in which a begin token has no place of its own."""
        return not self.begin_source


@dataclass(frozen=True, config=CHECKED)
class CausalLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `CausalLanguageModel`; targets begin with `bos_id`."""

    packs: ClassVar[bool] = True
    trains_on_text: ClassVar[bool] = True
    bos_id: NonNegativeInt = 2


@dataclass(frozen=True, config=CHECKED)
class PermutationLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `PermutationLanguageModel`."""

    trains_on_text: ClassVar[bool] = True
    translates: ClassVar[bool] = False


@dataclass(frozen=True, config=CHECKED)
class MaskedLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `MaskedLanguageModel`; targets end with `eos_id`.

    A masked token is replaced by `mask_id`, which must not occur in any text. The id of unknown
    tokens is suitable if the tokenizer falls back to bytes.
    """

    trains_on_text: ClassVar[bool] = True
    translates: ClassVar[bool] = False
    mask_id: NonNegativeInt = 1
    eos_id: NonNegativeInt = 3


@dataclass(frozen=True, config=CHECKED)
class Seq2SeqConfig(ModelConfig):
    """Base class of the configurations of recurrent encoders and decoders.

    A subclass fixes the structure of its paper; its sizes have the paper's values as defaults;
    `dropout_rate` and `tie_embeddings` have ours.

    Attributes:
        cell: `"lstm"` or `"gru"`.
        bidirectional: Whether the encoder reads in both directions.
        attention_score: The score of query and key; None for no attention.
        attention_window: D of local attention (Luong et al. 2015, section 3.2, local-p), 10 in the
            paper; None for global attention.
        context_feeding: Whether each step reads a context beside the token: what the previous state
            attends to or, without attention, a summary of the source. A maxout layer then reads
            state, token and context.
        input_feeding: Whether each step reads the attentional vector of the previous step (Luong
            et al. 2015, section 3.3).
    """

    cell: ClassVar[str] = "lstm"
    num_layers: ClassVar[int] = 1
    bidirectional: ClassVar[bool] = False
    reverse_source: ClassVar[bool] = False
    attention_score: ClassVar[str | None] = None
    attention_window: ClassVar[int | None] = None
    context_feeding: ClassVar[bool] = False
    input_feeding: ClassVar[bool] = False

    @property
    def num_units(self) -> int:
        """Width of the states."""
        return self.d_model


@dataclass(frozen=True, config=CHECKED)
class SutskeverConfig(Seq2SeqConfig):
    """Deep LSTMs that read the source reversed (Sutskever et al. 2014, sections 3.3 and 3.4)."""

    d_model: PositiveInt = setting(1000, "width of embeddings and states")
    num_layers: PositiveInt = setting(4, "encoder layers; the decoder has the same number")
    reverse_source: bool = setting(True, "read the source from its last token to its first")


@dataclass(frozen=True, config=CHECKED)
class ChoConfig(Seq2SeqConfig):
    """A GRU encoder and decoder (Cho et al. 2014, section 4.1, where embeddings are 100 wide)."""

    cell: ClassVar[str] = "gru"
    context_feeding: ClassVar[bool] = True
    d_model: PositiveInt = setting(500, "width of embeddings and of the layer before the output")
    num_units: PositiveInt = setting(1000, "width of the recurrent states")


@dataclass(frozen=True, config=CHECKED)
class BahdanauConfig(ChoConfig):
    """GRUs with additive attention (Bahdanau et al. 2015, appendix A.2.3, maxout 500 wide)."""

    bidirectional: ClassVar[bool] = True
    attention_score: ClassVar[str] = "concat"
    d_model: PositiveInt = setting(620, "width of embeddings and of the layer before the output")


@dataclass(frozen=True, config=CHECKED)
class LuongConfig(SutskeverConfig):
    """Stacked LSTMs with attention (Luong et al. 2015, sections 3 and 4.1)."""

    attention_score: Literal["dot", "general", "concat"] = setting("general", "attention score")
    attention_window: PositiveInt | None = setting(None, "reach of attention; default: global")
    input_feeding: bool = setting(True, "feed the attentional vector to the next step")
