"""The configuration of a run: one frozen, validated dataclass for each table of run.toml."""

import dataclasses
import os
import pathlib
import tomllib
import typing
from collections.abc import Mapping
from typing import Any

import tomli_w

from tf_transformer.errors import ConfigError, did_you_mean
from tf_transformer.models.architectures import ARCHITECTURES, architecture_name, preset
from tf_transformer.models.configs import TransformerConfig
from tf_transformer.settings import (
    flag,
    from_table,
    require,
    require_choices,
    require_positive,
    require_rate,
    setting,
    settings_of,
)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where sentences come from, and how they are batched."""

    corpus: str | None = setting(
        None,
        "text, tsv, phrasebook, copy, reverse or tfds:NAME; default: text or tsv, as the files are",
    )
    train_source: str | None = setting(
        None, "source sentences, one a line, plain or gzip; or a pattern in quotes, 'train.*.en.gz'"
    )
    train_target: str | None = setting(None, "their translations, line by line, file by file")
    validation_source: str | None = setting(
        None, "source sentences that choose the checkpoint; default: some of the training text"
    )
    validation_target: str | None = setting(None, "their translations")
    train_tsv: str | None = setting(None, "source TAB target, one pair a line")
    validation_tsv: str | None = setting(
        None, "the same, to choose the checkpoint; default: some of the training text"
    )
    tfds_dir: str | None = setting(None, "folder of prepared TFDS data sets")
    tfds_download: bool = setting(False, "let TFDS use the network")
    data_cache: str | None = setting(
        None,
        "keep the token ids of the training text in this folder instead of in memory, for this and "
        "later runs; for text of millions of pairs",
    )
    max_length: int = setting(
        128, "subwords in a sentence, its end included; longer pairs are dropped"
    )
    source_noise: float | None = setting(
        None,
        "probability that a source sentence gets noise in an epoch: no capitals, no final "
        "punctuation or typing errors",
        recipe=True,
    )
    fold_capitals: bool | None = setting(
        None,
        "translate a sentence that is all in capitals as if it were in small letters",
        recipe=True,
    )
    batch_tokens: int | None = setting(
        None, "tokens in a batch on its longer side, padding included", recipe=True
    )

    TRAINING_FILES: typing.ClassVar = {
        "text": ("train_source", "train_target"),
        "tsv": ("train_tsv",),
    }
    VALIDATION_FILES: typing.ClassVar = {
        "text": ("validation_source", "validation_target"),
        "tsv": ("validation_tsv",),
    }
    FILES: typing.ClassVar = sum((*TRAINING_FILES.values(), *VALIDATION_FILES.values()), ())
    CORPORA: typing.ClassVar = (*TRAINING_FILES, "phrasebook", "copy", "reverse")

    def __post_init__(self) -> None:
        """Fills in the corpus of the files, and checks the values."""
        if self.corpus is None:
            object.__setattr__(self, "corpus", self._corpus_of_files())
        require_positive(self, "batch_tokens")
        require_rate(self, "source_noise")
        require(self.max_length > 1, "max_length", self.max_length, "2 or more")
        require(
            self.batch_tokens is None or self.max_length <= self.batch_tokens,
            "max_length",
            self.max_length,
            f"at most batch_tokens={self.batch_tokens}, so that every sentence fits a batch",
        )
        if self.corpus not in self.CORPORA and not self.corpus.startswith("tfds:"):
            hint = did_you_mean(self.corpus, [*self.CORPORA, "tfds:NAME"])
            raise ConfigError(f"unknown corpus {self.corpus!r}: {hint}")
        training = self.TRAINING_FILES.get(self.corpus, ())
        validation = self.VALIDATION_FILES.get(self.corpus, ())
        for name in self.FILES:
            if name not in training + validation and getattr(self, name) is not None:
                raise ConfigError(
                    f"{flag(name)} has no use with the corpus {self.corpus!r}. "
                    f"Give one or the other."
                )
        if missing := [name for name in training if getattr(self, name) is None]:
            raise ConfigError(
                f"missing {', '.join(map(flag, missing))}. Give these files, "
                f"or choose a corpus that needs none: --corpus phrasebook."
            )
        missing = [name for name in validation if getattr(self, name) is None]
        if missing and len(missing) < len(validation):
            both = " and ".join(map(flag, validation))
            raise ConfigError(
                f"missing {', '.join(map(flag, missing))}. Give {both}, or neither: then a part of "
                f"the training text is held out for validation."
            )

    @property
    def has_validation_files(self) -> bool:
        """Whether the validation text has files of its own."""
        names = self.VALIDATION_FILES.get(self.corpus, ())
        return any(getattr(self, name) is not None for name in names)

    def _corpus_of_files(self) -> str:
        for files in (self.TRAINING_FILES, self.VALIDATION_FILES):
            for corpus, names in files.items():
                if any(getattr(self, name) is not None for name in names):
                    return corpus
        return "text"


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """How SentencePiece splits text into subwords."""

    vocab_size: int | None = setting(
        None, "subwords in a vocabulary, 256 bytes and 4 special ids among them", recipe=True
    )
    model_type: str = setting("bpe", "how subwords are chosen", ("bpe", "unigram"))
    joint: bool = setting(True, "one vocabulary for both sides")
    bpe_dropout: float = setting(
        0.0, "probability that a merge of BPE is left out in an epoch, so that words split anew"
    )

    def __post_init__(self) -> None:
        """Checks the values."""
        require(
            self.vocab_size is None or self.vocab_size > 260, "vocab_size", self.vocab_size,
            "more than 260, the 256 bytes and 4 special ids that it always holds",
        )  # fmt: skip
        require_choices(self)
        require_rate(self, "bpe_dropout")
        if self.bpe_dropout and self.model_type != "bpe":
            raise ConfigError(
                f"bpe_dropout leaves out merges, which model_type={self.model_type!r} has not. "
                f"Omit one of them."
            )


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How long and how the model is trained."""

    steps: int | None = setting(None, "train for this many updates")
    epochs: int | None = setting(
        None, "train for this many passes; chosen for the corpus if no length is given"
    )
    minutes: float | None = setting(None, "train for this long, from the start of the command")
    seed: int = setting(0, "of weights, data order and dropout")
    schedule: str = setting(
        "trapezoid",
        "of the learning rate: warm-up, peak, decay to 0 at the end; or the paper's",
        ("trapezoid", "noam"),
    )
    learning_rate: float | None = setting(None, "at its peak", recipe=True)
    warmup_steps: int | None = setting(None, "updates until the learning rate peaks", recipe=True)
    decay_fraction: float = setting(
        0.4, "the last part of training, in which the rate of the trapezoid falls to 0"
    )
    label_smoothing: float = setting(0.1, "probability of all tokens but the true one")
    validation_steps: int | None = setting(None, "updates between validations", recipe=True)
    checkpoint_steps: int | None = setting(
        None, "updates between checkpoints; default: one after each validation"
    )
    keep_checkpoints: int = setting(5, "newest checkpoints to keep besides the best")
    patience: int | None = setting(
        None, "validations without a better BLEU after which to stop; default: never stop early"
    )
    accumulation_steps: int = setting(1, "batches whose gradients are accumulated for one update")
    clip_norm: float | None = setting(None, "limit of the norm of all gradients; default: none")
    ema_momentum: float | None = setting(
        None, "validate and keep a moving average of weights, such as 0.999; default: none"
    )
    tensorboard: bool = setting(
        False, "write the metrics for TensorBoard too; needs the package tensorboard"
    )
    chunked_logits: bool = setting(
        False,
        "compute the logits of a batch in parts: less memory, more time for large vocabularies",
    )
    deterministic: bool = setting(False, "ops that give the same bits every time; slower on a GPU")
    precision: str = setting(
        "float32",
        "of activations and matrix products; weights stay float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
    )
    devices: str | None = setting(
        None, "a number of GPUs, or devices by name: gpu:0,gpu:1 or cpu; default: every GPU"
    )

    LENGTHS: typing.ClassVar = ("steps", "epochs", "minutes")

    def __post_init__(self) -> None:
        """Checks the values."""
        require_positive(
            self, "steps", "epochs", "minutes", "learning_rate", "warmup_steps",
            "validation_steps", "checkpoint_steps", "keep_checkpoints", "accumulation_steps",
            "patience", "clip_norm",
        )  # fmt: skip
        require(0 <= self.seed < 2**31, "seed", self.seed, "at least 0 and less than 2^31")
        require_rate(self, "label_smoothing", "ema_momentum")
        need = "greater than 0 and at most 1"
        require(0 < self.decay_fraction <= 1, "decay_fraction", self.decay_fraction, need)
        lengths = [n for n in self.LENGTHS if getattr(self, n) is not None]
        if len(lengths) > 1:
            raise ConfigError(
                f"{' and '.join(map(flag, lengths))} each set when training ends. Give one of them."
            )
        require_choices(self)


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """The keys of `[model]` that choose the architecture and the preset."""

    architecture: str = setting("transformer", "which model", tuple(ARCHITECTURES))
    preset: str = setting("tiny", "a table of sizes", ("tiny", "small", "base", "big"))

    def __post_init__(self) -> None:
        """Checks the values."""
        require_choices(self)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that defines a training run; `run.toml` has a table for each field.

    Attributes:
        data: The corpus and its batches.
        tokenizer: The vocabularies.
        model: The configuration of one of the architectures; its vocabularies may be None, since
            the tokenizers decide them. By default the preset tiny.
        training: How the model is trained.
        chosen: What was chosen and why, by setting, such as `"training.warmup_steps"`; `"for"` is
            what it was chosen for. A note for people.
    """

    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: TransformerConfig | None = None
    training: TrainingConfig = TrainingConfig()
    chosen: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Fills in the default model, and checks what concerns two tables."""
        if self.model is None:
            model = dataclasses.replace(
                preset("tiny"), tie_embeddings=self.tokenizer.joint, dropout_rate=None
            )
            object.__setattr__(self, "model", model)
        if self.model.tie_embeddings and not self.tokenizer.joint:
            raise ConfigError(
                "tie_embeddings needs one vocabulary for both sides. Omit tie_embeddings or "
                "train a joint tokenizer (--joint)."
            )

    @classmethod
    def from_dict(
        cls, tables: Mapping[str, Mapping[str, Any]], where: str = "configuration"
    ) -> "RunConfig":
        """Builds a configuration from tables of plain values.

        Args:
            tables: Table name to settings; what is missing has its default. `[model]` may name a
                preset, whose sizes hold where the table gives none.
            where: What errors name, such as the file.

        Raises:
            ConfigError: A key is unknown (the nearest is named), a type is wrong or a value
                invalid.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name, table in tables.items():
            if name not in names:
                raise ConfigError(f"{where}: unknown table [{name}]: {did_you_mean(name, names)}")
            if not isinstance(table, Mapping):
                raise ConfigError(f"{where}: {name} must be a table; write [{name}].")

        def section(config: type, name: str) -> Any:
            return from_table(config, tables.get(name, {}), f"{where}: [{name}]")

        training = section(TrainingConfig, "training")
        tokenizer = section(TokenizerConfig, "tokenizer")
        model = _model_from_table(tables.get("model", {}), tokenizer, f"{where}: [model]")
        data = section(DataConfig, "data")
        try:
            return cls(data, tokenizer, model, training, dict(tables.get("chosen", {})))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Tables of plain values, without the settings that are None."""
        tables = {}
        for name in ("data", "tokenizer", "model", "training"):
            config = getattr(self, name)
            values = {key.name: getattr(config, key.name) for key in settings_of(type(config))}
            tables[name] = {k: v for k, v in values.items() if v is not None}
        tables["model"] = {"architecture": architecture_name(self.model), **tables["model"]}
        return {**tables, "chosen": dict(self.chosen)} if self.chosen else tables

    def to_toml(self) -> str:
        """The complete configuration as the text of a run.toml."""
        return tomli_w.dumps(self.to_dict())


def settings_by_table(architecture: str = "transformer") -> dict[str, list[dataclasses.Field]]:
    """The settings of each table of run.toml, where the model is of this architecture."""
    model = ARCHITECTURES[architecture].config
    return {
        "data": settings_of(DataConfig),
        "tokenizer": settings_of(TokenizerConfig),
        "model": [*settings_of(ModelChoice), *settings_of(model)],
        "training": settings_of(TrainingConfig),
    }


def _model_from_table(table: Mapping[str, Any], tokenizer: TokenizerConfig, where: str) -> Any:
    """The model's configuration: that of the preset, changed by the table."""
    names = [field.name for field in settings_of(ModelChoice)]
    choice = from_table(ModelChoice, {k: v for k, v in table.items() if k in names}, where)
    row = ARCHITECTURES[choice.architecture]
    given = {key: value for key, value in table.items() if key not in names}
    defaults = {"tie_embeddings": tokenizer.joint, **row.presets[choice.preset]}
    config = from_table(row.config, {**defaults, **given}, where)
    for_recipe = {field.name for field in settings_of(row.config) if field.metadata["recipe"]}
    return dataclasses.replace(config, **dict.fromkeys(for_recipe - set(given)))


def merge_tables(
    tables: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The tables of a file with the settings that the command line gives, which win.

    A preset on the command line replaces the sizes in the file, and a length of training (`steps`,
    `epochs`, `minutes`) the length in the file, whatever its unit.
    """
    merged = dict(tables)
    for name, settings in given.items():
        table = tables.get(name, {})
        if not isinstance(table, Mapping):
            continue  # `RunConfig.from_dict` raises the error
        dropped: set[str] = set()
        if name == "model" and "preset" in settings:
            presets = [p for row in ARCHITECTURES.values() for p in row.presets.values()]
            dropped = {key for sizes in presets for key in sizes}
        if name == "training" and set(TrainingConfig.LENGTHS) & set(settings):
            dropped = set(TrainingConfig.LENGTHS)
        kept = {key: value for key, value in table.items() if key not in dropped}
        merged[name] = {**kept, **settings}
    changed = {
        f"{table}.{name}"
        for table, settings in given.items()
        for name, value in settings.items()
        if isinstance(tables.get(table), Mapping) and tables[table].get(name) != value
    }
    if isinstance(merged.get("chosen"), Mapping):
        merged["chosen"] = {k: v for k, v in merged["chosen"].items() if k not in changed}
    return merged


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a TOML file into tables.

    Raises:
        ConfigError: The file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}.") from None
