"""Configuration: frozen, validated dataclasses, and the TOML file that holds them all."""

import dataclasses
import difflib
import pathlib
import tomllib
import types
import typing

import tomli_w


class InputError(ValueError):
    """Something from the user that cannot be used; the message is one line that says what to do."""


class ConfigError(InputError):
    """A setting that cannot be."""


def nearest(name, known, otherwise=None):
    """`"did you mean 'x'?"` for the known name nearest to `name`, else advice or all known."""
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if matches:
        return f"did you mean {matches[0]!r}?"
    return otherwise or f"known are {', '.join(sorted(known))}."


def flag(name):
    """The option of the command line for a setting."""
    return f"--{name.replace('_', '-')}"


def _option(default, help_text, choices=()):
    """A field that is also an option of the command line, with this help; one of the choices."""
    return dataclasses.field(default=default, metadata={"help": help_text, "choices": choices})


def _require(condition, name, value, need):
    if not condition:
        raise ConfigError(f"{name} must be {need}; received {name}={value!r}.")


def _require_positive(config, *names):
    for name in names:
        value = getattr(config, name)
        _require(value is None or value > 0, name, value, "greater than 0")


def _require_rate(config, *names):
    for name in names:
        value = getattr(config, name)
        ok = value is None or 0 <= value < 1
        _require(ok, name, value, "at least 0 and less than 1")


def _require_choices(config):
    for field in dataclasses.fields(config):
        value, choices = getattr(config, field.name), field.metadata["choices"]
        if choices and value not in choices:
            raise ConfigError(f"unknown {field.name} {value!r}: {nearest(value, choices)}")


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The sizes of a Transformer (Vaswani et al. 2017, table 3).

    Attributes:
        source_vocab_size, target_vocab_size: int, V of each side.
        num_layers: int, layers of the encoder, and as many of the decoder.
        d_model: int, D, even and a multiple of `num_heads`.
        num_heads: int, H.
        d_ff: int, width of the feed-forward networks.
        dropout_rate: float, dropout of embeddings and of each sub-layer's output (section 5.4).
        attention_dropout_rate: float, dropout of the attention weights (not in the paper).
        norm_first: bool, normalise before each sub-layer; False is the paper's post-norm.
        tie_embeddings: bool, one matrix for source, target and output (section 3.4).
        pad_id: int, the id of padding in both vocabularies.

    Raises:
        ConfigError: a size is not positive, a rate not in [0, 1), `d_model` odd or no multiple of
            `num_heads`, `pad_id` not in the vocabularies, or these differ and are to be tied.
    """

    source_vocab_size: int
    target_vocab_size: int
    num_layers: int = 6
    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.0
    norm_first: bool = True
    tie_embeddings: bool = True
    pad_id: int = 0

    def __post_init__(self):
        _require_positive(
            self, "source_vocab_size", "target_vocab_size", "num_layers", "d_model", "num_heads",
            "d_ff",
        )  # fmt: skip
        _require_rate(self, "dropout_rate", "attention_dropout_rate")
        _require(
            self.d_model % self.num_heads == 0, "d_model", self.d_model,
            f"a multiple of num_heads={self.num_heads}",
        )  # fmt: skip
        _require(self.d_model % 2 == 0, "d_model", self.d_model, "even")
        vocab_size = min(self.source_vocab_size, self.target_vocab_size)
        _require(0 <= self.pad_id < vocab_size, "pad_id", self.pad_id, f"an id below {vocab_size}")
        if self.tie_embeddings and self.source_vocab_size != self.target_vocab_size:
            raise ConfigError(
                f"tie_embeddings=True needs one vocabulary for both sides; received "
                f"source_vocab_size={self.source_vocab_size}, "
                f"target_vocab_size={self.target_vocab_size}. "
                f"Train a joint tokenizer or set tie_embeddings=False."
            )

    def to_dict(self):
        """The fields as a dict of plain values; `TransformerConfig(**d)` is the way back."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where sentences come from, and how they are batched. Each field's help says what it is."""

    corpus: str = _option("text", "text, tsv, phrasebook, copy, reverse or tfds:NAME")
    train_source: str | None = _option(
        None, "source sentences, one a line, plain or gzip; or a pattern in quotes, 'train.*.en.gz'"
    )
    train_target: str | None = _option(None, "their translations, line by line, file by file")
    validation_source: str | None = _option(None, "source sentences that choose the checkpoint")
    validation_target: str | None = _option(None, "their translations")
    train_tsv: str | None = _option(None, "source TAB target, one pair a line")
    validation_tsv: str | None = _option(None, "the same, to choose the checkpoint")
    tfds_dir: str | None = _option(None, "folder of prepared TFDS data sets")
    tfds_download: bool = _option(False, "let TFDS use the network")
    data_cache: str | None = _option(
        None,
        "keep the ids of the training text in this folder instead of in memory, and find them "
        "again; for text of millions of pairs",
    )
    max_length: int = _option(128, "pieces in a sentence; longer pairs are left out")
    batch_tokens: int = _option(4096, "positions in a batch on its longer side, padding included")

    FILES: typing.ClassVar = {
        "text": ("train_source", "train_target", "validation_source", "validation_target"),
        "tsv": ("train_tsv", "validation_tsv"),
    }
    CORPORA: typing.ClassVar = (*FILES, "phrasebook", "copy", "reverse")

    def __post_init__(self):
        _require_positive(self, "batch_tokens")
        _require(self.max_length > 1, "max_length", self.max_length, "2 or more")
        _require(
            self.max_length <= self.batch_tokens,
            "max_length",
            self.max_length,
            f"at most batch_tokens={self.batch_tokens}, so that every sentence fits a batch",
        )
        if self.corpus not in self.CORPORA and not self.corpus.startswith("tfds:"):
            hint = nearest(self.corpus, [*self.CORPORA, "tfds:NAME"])
            raise ConfigError(f"unknown corpus {self.corpus!r}: {hint}")
        needed = self.FILES.get(self.corpus, ())
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ConfigError(
                f"missing {', '.join(map(flag, missing))}. Give these files, "
                f"or choose a corpus that needs none: --corpus phrasebook."
            )
        for name in sum(self.FILES.values(), ()):
            if name not in needed and getattr(self, name) is not None:
                raise ConfigError(
                    f"{flag(name)} has no use with the corpus {self.corpus!r}. "
                    f"Give one or the other."
                )


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """How SentencePiece cuts text into pieces. Each field's help says what it is."""

    vocab_size: int | None = _option(
        None, "pieces in a vocabulary, 256 bytes and 4 special ids among them; text: 8000"
    )
    model_type: str = _option("bpe", "how pieces are found", ("bpe", "unigram"))
    joint: bool = _option(True, "one vocabulary for both sides")

    def __post_init__(self):
        _require(
            self.vocab_size is None or self.vocab_size > 260, "vocab_size", self.vocab_size,
            "more than 260, the 256 bytes and 4 special ids that are always in it",
        )  # fmt: skip
        _require_choices(self)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Which model: a preset, and what differs from it. Each field's help says what it is."""

    preset: str = _option("tiny", "a table of sizes", ("tiny", "small", "base", "big"))
    num_layers: int | None = _option(None, "encoder layers, and as many decoder layers")
    d_model: int | None = _option(None, "width of the model")
    num_heads: int | None = _option(None, "attention heads")
    d_ff: int | None = _option(None, "width of the feed-forward networks")
    dropout_rate: float = _option(0.1, "dropout of embeddings and sub-layers")
    attention_dropout_rate: float = _option(0.0, "dropout of attention weights")
    norm_first: bool = _option(True, "normalise before each sub-layer; the paper: after")
    tie_embeddings: bool | None = _option(
        None, "one matrix for source, target and output; default: if the vocabulary is joint"
    )

    SIZES: typing.ClassVar = ("num_layers", "d_model", "num_heads", "d_ff")

    def __post_init__(self):
        _require_choices(self)
        _require_positive(self, "num_layers", "d_model", "num_heads", "d_ff")
        _require_rate(self, "dropout_rate", "attention_dropout_rate")


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How long and how the model learns. Each field's help says what it is."""

    steps: int | None = _option(None, "train for so many updates")
    epochs: int | None = _option(None, "train for so many passes; 10 if no length is given")
    minutes: float | None = _option(None, "train for so long, from the start of the command")
    seed: int = _option(0, "of weights, data order and dropout")
    learning_rate_factor: float = _option(1.0, "scale of Noam's schedule")
    warmup_steps: int = _option(4000, "updates until the learning rate is highest")
    label_smoothing: float = _option(0.1, "probability of all tokens but the true one")
    validation_steps: int | None = _option(None, "updates between validations; default: an epoch")
    checkpoint_steps: int | None = _option(
        None, "updates between checkpoints; default: one after each validation"
    )
    keep_checkpoints: int = _option(5, "newest checkpoints to keep besides the best")
    patience: int | None = _option(
        None, "end after so many validations without a better BLEU; default: never"
    )
    accumulation_steps: int = _option(1, "batches whose gradients make one update")
    clip_norm: float | None = _option(None, "limit of the norm of all gradients; default: none")
    ema_momentum: float | None = _option(
        None, "validate and keep a moving average of weights, such as 0.999; default: none"
    )
    tensorboard: bool = _option(False, "write the figures for TensorBoard too")
    chunked_logits: bool = _option(
        False,
        "never hold all logits of a batch: less memory, more time for large vocabularies",
    )
    deterministic: bool = _option(False, "ops that give the same bits every time; slower on a GPU")
    precision: str = _option(
        "float32",
        "of activations and products; weights stay float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
    )
    devices: str | None = _option(
        None, "so many GPUs, or devices by name: gpu:0,gpu:1 or cpu; default: every GPU"
    )

    LENGTHS: typing.ClassVar = ("steps", "epochs", "minutes")

    def __post_init__(self):
        _require_positive(
            self, "steps", "epochs", "minutes", "learning_rate_factor", "warmup_steps",
            "validation_steps", "checkpoint_steps", "keep_checkpoints", "accumulation_steps",
            "patience", "clip_norm",
        )  # fmt: skip
        _require(0 <= self.seed < 2**31, "seed", self.seed, "at least 0 and less than 2^31")
        _require_rate(self, "label_smoothing", "ema_momentum")
        lengths = [n for n in self.LENGTHS if getattr(self, n) is not None]
        if len(lengths) > 1:
            raise ConfigError(
                f"{' and '.join(map(flag, lengths))} each say when training ends. Give one of them."
            )
        _require_choices(self)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that defines a training run; `run.toml` has a table for each field."""

    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()

    def __post_init__(self):
        if self.model.tie_embeddings and not self.tokenizer.joint:
            raise ConfigError(
                "tie_embeddings needs one vocabulary for both sides. Leave out tie_embeddings or "
                "train a joint tokenizer (--joint)."
            )

    @classmethod
    def sections(cls):
        """Name and dataclass of each table."""
        return {field.name: field.type for field in dataclasses.fields(cls)}

    @classmethod
    def from_dict(cls, tables, where="configuration"):
        """Builds a configuration from tables of plain values.

        Args:
            tables: dict of section name to dict of settings; what is left out has its default.
            where: str, named in errors.

        Raises:
            ConfigError: an unknown key (the nearest is named), a wrong type, or a bad value.
        """
        sections = cls.sections()
        values = {}
        for name, table in tables.items():
            if name not in sections:
                raise ConfigError(f"{where}: unknown table [{name}]: {nearest(name, sections)}")
            if not isinstance(table, dict):
                raise ConfigError(f"{where}: {name} must be a table; write [{name}].")
            values[name] = _section_from_dict(sections[name], table, f"{where}: [{name}]")
        try:
            return cls(**{"data": values.pop("data", None) or DataConfig(), **values})
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def to_dict(self):
        """Tables of plain values, without the settings that are None."""
        return {
            name: {key: value for key, value in table.items() if value is not None}
            for name, table in dataclasses.asdict(self).items()
        }

    def save(self, path):
        """Writes the complete configuration as TOML."""
        pathlib.Path(path).write_text(tomli_w.dumps(self.to_dict()), encoding="utf-8")


def _section_from_dict(section, table, where):
    fields = {field.name: field for field in dataclasses.fields(section)}
    values = {}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"{where} has no key {key!r}: {nearest(key, fields)}")
        values[key] = _checked(fields[key].type, value, f"{where} {key}")
    try:
        return section(**values)
    except ConfigError as error:
        raise ConfigError(f"{where} {error}") from None


def _checked(annotation, value, where):
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else [annotation]
    if float in kinds and type(value) is int:
        return float(value)
    if type(value) not in kinds:
        expected = " or ".join(kind.__name__ for kind in kinds if kind is not types.NoneType)
        raise ConfigError(f"{where} must be {expected}; received {value!r}.")
    return value


def read_toml(path):
    """Reads a TOML file into tables.

    Raises:
        ConfigError: the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}.") from None
