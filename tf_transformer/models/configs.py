"""The configurations of the models: frozen, validated dataclasses that need no Keras."""

import dataclasses
from typing import Any, ClassVar

from tf_transformer.errors import ConfigError
from tf_transformer.settings import (
    kinds_of,
    recipe_settings,
    require,
    require_choices,
    require_positive,
    require_rate,
    setting,
    settings_of,
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What the configurations of all architectures share.

    The vocabularies and special ids such as `pad_id` come from the tokenizers (`with_tokenizers`),
    all else from the table `[model]` of run.toml.

    Attributes:
        source_vocab_size: V of the source; None until the tokenizer is known.
        target_vocab_size: V of the target; None until the tokenizer is known.
        d_model: D.
        dropout_rate: Dropout of embeddings and layers; None in a run's configuration until it is
            chosen.
        tie_embeddings: Whether source, target and output share one matrix (Press & Wolf 2016).
        pad_id: The id of padding in both vocabularies.

    Raises:
        ConfigError: A size is not positive, a rate not in [0, 1), a choice unknown, `pad_id`
            outside the vocabularies, or these differ and are to be tied.
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
        fields = settings_of(type(self))
        sizes = [field.name for field in fields if int in kinds_of(field.type)]
        require_positive(self, "source_vocab_size", "target_vocab_size", *sizes)
        require_rate(self, *[field.name for field in fields if float in kinds_of(field.type)])
        require_choices(self)
        known = [v for v in (self.source_vocab_size, self.target_vocab_size) if v is not None]
        is_id = 0 <= self.pad_id < min(known, default=self.pad_id + 1)
        require(is_id, "pad_id", self.pad_id, "an id of both vocabularies")
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


@dataclasses.dataclass(frozen=True)
class AttentionConfig(ModelConfig):
    """What the Transformer and the language models share (Vaswani et al. 2017, table 3).

    Attributes:
        d_model: D, even and a multiple of `num_heads`.
        dropout_rate: Dropout of embeddings and of each sub-layer's output (section 5.4).
        num_layers: Layers of each stack.
        num_heads: H.
        d_ff: Width of the feed-forward networks.
        attention_dropout_rate: Dropout of the attention weights (not in the paper); None in a run's
            configuration until it is chosen.
        norm_first: Whether to normalise before each sub-layer; False is the paper's post-norm.

    Raises:
        ConfigError: As in `ModelConfig`, or `d_model` is odd or no multiple of `num_heads`.
    """

    num_layers: int = setting(6, "encoder layers, and as many decoder layers")
    num_heads: int = setting(8, "attention heads")
    d_ff: int = setting(2048, "width of the feed-forward networks")
    attention_dropout_rate: float | None = setting(0.0, "dropout of attention weights", recipe=True)
    norm_first: bool = setting(True, "normalise before each sub-layer; the paper: after")

    def __post_init__(self) -> None:
        """Checks the values."""
        super().__post_init__()
        need = f"a multiple of num_heads={self.num_heads}"
        require(self.d_model % self.num_heads == 0, "d_model", self.d_model, need)
        require(self.d_model % 2 == 0, "d_model", self.d_model, "even")

    @property
    def layer_options(self) -> dict[str, Any]:
        """What all layers of a stack are made with, see `TransformerLayer`."""
        names = ("d_model", "num_heads", "d_ff", "dropout_rate", "attention_dropout_rate")
        return {name: getattr(self, name) for name in (*names, "norm_first")}


@dataclasses.dataclass(frozen=True)
class TransformerConfig(AttentionConfig):
    """The configuration of a Transformer.

    Attributes:
        activation: Of the feed-forward networks; the paper's is relu.
        positions: Sinusoids (section 3.5), or a trained table of each side (table 3, row E).
        max_positions: Rows of these tables: one more than the tokens of the longest sentence.
        tie_output: Whether target and output share one matrix where the source has its own (Press
            & Wolf 2016); with `tie_embeddings` all three do.
    """

    activation: str = setting(
        "relu", "of the feed-forward networks", choices=("relu", "gelu", "swish")
    )
    positions: str = setting(
        "sinusoidal", "how tokens know their places", choices=("sinusoidal", "learned")
    )
    max_positions: int = setting(512, "learned positions; at least max_length + 1")
    tie_output: bool = setting(
        False, "one matrix for target and output, where the source has a vocabulary of its own"
    )

    @property
    def position_limit(self) -> int | None:
        """`max_positions` where positions are learned; None for sinusoids, which have no end."""
        return self.max_positions if self.positions == "learned" else None


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(AttentionConfig):
    """What the configurations of the language models share: the sizes of one stack."""

    num_layers: int = setting(12, "layers, which source and target share")


@dataclasses.dataclass(frozen=True)
class PrefixLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `PrefixLanguageModel`."""


@dataclasses.dataclass(frozen=True)
class CausalLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `CausalLanguageModel`; targets begin with `bos_id`."""

    bos_id: int = 2


@dataclasses.dataclass(frozen=True)
class PermutationLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `PermutationLanguageModel`."""


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModelConfig(LanguageModelConfig):
    """The configuration of a `MaskedLanguageModel`.

    Attributes:
        mask_id: What is shown in place of a masked token: an id that no text has, such as that of
            unknown tokens where the tokenizer falls back to bytes.
        eos_id: The token that targets end with.
    """

    mask_id: int = 1
    eos_id: int = 3


@dataclasses.dataclass(frozen=True)
class Seq2SeqConfig(ModelConfig):
    """What a recurrent encoder and decoder can be; the papers' configurations are subclasses.

    A paper's structure is constant, and its sizes are settings with the paper's values as defaults.

    Attributes:
        cell: `"lstm"` or `"gru"`.
        num_layers: Layers of the encoder, and as many of the decoder.
        num_units: Width of the states; that of the embeddings unless the paper has another.
        bidirectional: Whether the encoder reads in both directions.
        reverse_source: Whether the source is read from its last token to its first.
        attention_score: The score of query and key; None for no attention.
        attention_window: D of local attention (Luong et al. 2015, section 3.2, local-p), 10 in the
            paper; None for global attention.
        context_feeding: Whether each step reads a context beside the token: what the state before
            it attends to, or without attention a summary of the source. A maxout layer reads
            state, token and context.
        input_feeding: Whether each step reads the attentional vector of the last (Luong et al.
            2015, section 3.3).
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


@dataclasses.dataclass(frozen=True)
class SutskeverConfig(Seq2SeqConfig):
    """Deep LSTMs that read the source reversed (Sutskever et al. 2014, sections 3.3 and 3.4)."""

    d_model: int = setting(1000, "width of embeddings and states")
    num_layers: int = setting(4, "encoder layers, and as many decoder layers")
    reverse_source: bool = setting(True, "read the source from its last token to its first")


@dataclasses.dataclass(frozen=True)
class ChoConfig(Seq2SeqConfig):
    """A GRU encoder and decoder (Cho et al. 2014, section 4.1, whose embeddings are 100 wide)."""

    cell: ClassVar[str] = "gru"
    context_feeding: ClassVar[bool] = True
    d_model: int = setting(500, "width of embeddings and of the layer before the output")
    num_units: int = setting(1000, "width of states")


@dataclasses.dataclass(frozen=True)
class BahdanauConfig(ChoConfig):
    """GRUs with additive attention (Bahdanau et al. 2015, appendix A.2.3, maxout 500 wide)."""

    bidirectional: ClassVar[bool] = True
    attention_score: ClassVar[str] = "concat"
    d_model: int = setting(620, "width of embeddings and of the layer before the output")


@dataclasses.dataclass(frozen=True)
class LuongConfig(SutskeverConfig):
    """Stacked LSTMs with attention (Luong et al. 2015, sections 3 and 4.1)."""

    attention_score: str = setting(
        "general", "score of query and key", ("dot", "general", "concat")
    )
    attention_window: int | None = setting(
        None, "positions to each side of local attention; default: global attention"
    )
    input_feeding: bool = setting(True, "each step reads the attentional vector of the last")
