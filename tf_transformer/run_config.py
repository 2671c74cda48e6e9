"""The configuration of a run: the tables of run.toml, which are also the options of `train`."""

import os
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

import tomli_w
from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from tf_transformer.config_fields import CHECKED, fields_of, setting
from tf_transformer.errors import ConfigError, did_you_mean
from tf_transformer.models.architectures import ARCHITECTURES, architecture_name, require_preset
from tf_transformer.models.model_configs import ModelConfig, Rate

Fraction = Annotated[float, Field(gt=0, le=1)]
Tables = Mapping[str, Mapping[str, Any]]
# Markup characters, escaped for a character class in a regular expression of `re` or RE2.
TAG_SIGNS = r"<>\[\]{}_@\\/"
CHOSEN_RATES = ("dropout_rate", "attention_dropout_rate")  # chosen by the recipe, if not given

# A list of which one value may be given alone.
_ONE_OR_MORE = BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value])
Texts = Annotated[tuple[str, ...], Field(min_length=1), _ONE_OR_MORE]
Weights = Annotated[tuple[PositiveFloat, ...], Field(min_length=1), _ONE_OR_MORE]


def _chosen(help_text: str) -> Any:
    """Return a setting that `runs/recipe.py` chooses if the run gives no value."""
    return setting(None, f"{help_text} (default: chosen for the corpus and the budget)")


@dataclass(frozen=True, config=CHECKED)
class DataConfig:
    """The corpus of a run, and how its sentences are batched."""

    corpus: str | None = setting(
        None,
        "text, tsv, monolingual, phrasebook, copy, reverse or tfds:NAME; default: from the files",
    )
    train_source: Texts | None = setting(
        None,
        "source sentences, one per line, plain or gzip; or a quoted pattern: 'train.*.en.gz'; "
        "repeat it for each of several corpora, as all options that name files",
    )
    train_target: Texts | None = setting(None, "their translations, file by file and line by line")
    weight: Weights | None = setting(None, "share of a corpus; default: by its number of pairs")
    tag: Texts | None = setting(None, "token before a corpus' sources, such as <BT>; '' for none")
    validation_source: Texts | None = setting(
        None,
        "source sentences for validation, of which the first file chooses the best checkpoint; "
        "default: a part of each corpus",
    )
    validation_target: Texts | None = setting(None, "translations of --validation-source")
    validation_tag: Texts | None = setting(None, "tag of each validation file; '' for none")
    train_tsv: Texts | None = setting(None, "pairs as source TAB target, one per line")
    validation_tsv: Texts | None = setting(None, "validation pairs; default: a part of each corpus")
    train_text: Texts | None = setting(
        None, "sentences without translations, for a language model; plain or gzip; or a pattern"
    )
    validation_text: Texts | None = setting(None, "for validation; default: a part of each corpus")
    tfds_dir: str | None = setting(None, "folder of prepared data sets of TensorFlow Datasets")
    tfds_download: bool = setting(False, "let TensorFlow Datasets download the data set")
    data_cache: str | None = setting(None, "keep token ids in this folder instead of in memory")
    max_length: Annotated[int, Field(ge=2)] = setting(
        128, "most tokens of a sentence, its end included; longer pairs are dropped"
    )
    max_length_ratio: PositiveFloat = setting(
        2.0, "limit of a translation's tokens: this number times those of its source, plus 10"
    )
    source_noise: Rate | None = _chosen(
        "probability in each epoch that a source sentence loses its capitals or its final "
        "punctuation; a word is mistyped with half of this probability"
    )
    source_tag: str | None = setting(None, "token in front of every source, such as >>deu<<")
    allow_unknown: bool = setting(
        True, "let translations have the token of unknown subwords, and line feeds and the like"
    )
    fold_capitals: bool | None = _chosen("translate sentences in capitals as if in lower case")
    dotless_i: bool | None = _chosen("then make ı of I, as in Turkish and Azeri")
    batch_tokens: PositiveInt | None = _chosen("tokens in a batch on its longer side, with padding")

    # Each side of a corpus is a file for training and a file for validation.
    SIDES: ClassVar = {"text": ("source", "target"), "tsv": ("tsv",), "monolingual": ("text",)}
    # Settings of a translator, too: a run that is initialized from another begins with them.
    OF_TRANSLATOR: ClassVar = (
        "max_length", "max_length_ratio", "source_tag", "allow_unknown", "fold_capitals",
        "dotless_i",
    )  # fmt: skip
    # An imported run has the corpus "none".
    CORPORA: ClassVar = (*SIDES, "phrasebook", "copy", "reverse", "none")

    @model_validator(mode="after")
    def _check(self) -> "DataConfig":
        given = {
            f"{part}_{side}": corpus
            for part in ("train", "validation")
            for corpus, sides in self.SIDES.items()
            for side in sides
            if getattr(self, f"{part}_{side}") is not None
        }
        if self.corpus is None:
            object.__setattr__(self, "corpus", next(iter(given.values()), "text"))
        if self.corpus not in self.CORPORA and not self.corpus.startswith("tfds:"):
            hint = did_you_mean(self.corpus, [*self.CORPORA, "tfds:NAME"])
            raise ValueError(f"unknown corpus {self.corpus!r}: {hint}")
        training, validation = self.files("train"), self.files("validation")
        if useless := [name for name in given if name not in training + validation]:
            raise ValueError(f"{flag(useless[0])} does not fit corpus {self.corpus!r}. Omit one.")
        if missing := [name for name in training if name not in given]:
            raise ValueError(
                f"missing {', '.join(map(flag, missing))}. Give these files, or choose a corpus "
                f"that needs none: --corpus phrasebook."
            )
        if self.has_validation_files and not {*validation} <= {*given}:
            raise ValueError(
                f"give both {' and '.join(map(flag, validation))}, or neither, to hold out a part "
                f"of the training text for validation."
            )
        if self.batch_tokens is not None and self.max_length > self.batch_tokens:
            raise ValueError(
                f"max_length={self.max_length} is more than batch_tokens={self.batch_tokens}, and "
                f"every sentence must fit a batch. Lower max_length or raise batch_tokens."
            )
        self._check_lists()
        names = ("source_noise", "source_tag", "tag", "validation_tag")
        changes = [name for name in names if getattr(self, name)]
        if changes and not self.has_sources:
            raise ValueError(f"{changes[0]} changes sources, but this corpus has none. Omit it.")
        return self

    def _check_lists(self) -> None:
        """Check the settings of which each corpus has one."""
        for part, others in (("train", ("weight", "tag")), ("validation", ("validation_tag",))):
            names = [name for name in self.files(part) if getattr(self, name) is not None]
            given = [name for name in others if getattr(self, name) is not None]
            if given and not names:
                raise ValueError(f"{flag(given[0])} needs files, one for each value. Omit it.")
            counts = {flag(name): len(getattr(self, name)) for name in names + given}
            if len(set(counts.values())) > 1:
                listed = ", ".join(f"{count} {name}" for name, count in counts.items())
                raise ValueError(f"received {listed}. Give as many of one as of the other.")
        for tag in self.tags:
            if not re.fullmatch(rf"\S*[{TAG_SIGNS}]\S*", tag):
                raise ValueError(
                    f"the tag {tag!r} must be one word with a sign that no other word has, such as "
                    f"<BT> or >>deu<<."
                )
        if self.source_tag and any((*(self.tag or ()), *(self.validation_tag or ()))):
            raise ValueError(
                "source_tag stands in front of every source already, so omit tag and "
                "validation_tag, or set source_tag to ''."
            )

    @property
    def has_sources(self) -> bool:
        """Whether the corpus has translations, rather than text in only one language."""
        return self.corpus != "monolingual"

    @property
    def has_validation_files(self) -> bool:
        """Whether the validation text has files of its own."""
        return any(getattr(self, name) is not None for name in self.files("validation"))

    @property
    def validation_tags(self) -> tuple[str, ...] | None:
        """The tag of each validation text: a file, or a part that a training corpus holds out."""
        return self.validation_tag if self.has_validation_files else self.tag

    @property
    def tags(self) -> list[str]:
        """All tags, each of which must be one token."""
        tags = (self.source_tag, *(self.tag or ()), *(self.validation_tag or ()))
        return [*dict.fromkeys(filter(None, tags))]

    def files(self, part: str) -> list[str]:
        """Return the settings that name the files of a `part`, `"train"` or `"validation"`."""
        return [f"{part}_{side}" for side in self.SIDES.get(self.corpus, ())]

    def paths(self, part: str) -> list[tuple[str, ...]]:
        """Return the file of each side for each corpus of a `part`; none if none are given."""
        return list(zip(*(getattr(self, name) or () for name in self.files(part)), strict=True))


@dataclass(frozen=True, config=CHECKED)
class TokenizerConfig:
    """How SentencePiece splits text into subwords."""

    vocab_size: Annotated[int, Field(gt=260)] | None = _chosen(
        "size of a vocabulary, with 256 bytes and 4 special tokens"
    )
    model_type: Literal["bpe", "unigram"] = setting("bpe", "SentencePiece's algorithm")
    joint: bool = setting(True, "use one vocabulary for source and target")
    character_coverage: Fraction = setting(
        0.9995, "share of the text whose characters have subwords; rarer characters become bytes"
    )
    normalization: Literal["nfc", "none"] = setting(
        "nfc", "nfc: compose letters and accents, and drop soft hyphens and zero-width spaces"
    )
    user_symbols: str | None = setting(None, "tags that are one subword each, such as '<BT> <2de>'")


@dataclass(frozen=True, config=CHECKED)
class TrainingConfig:
    """The length of training, and how the model is trained."""

    steps: PositiveInt | None = setting(None, "train for this many updates")
    epochs: PositiveInt | None = setting(
        None, "train for this many passes; chosen for the corpus if no length is given"
    )
    minutes: PositiveFloat | None = setting(None, "train for this many minutes, start-up included")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = setting(0, "seed of weights, data and dropout")
    schedule: Literal["trapezoid", "noam"] = setting(
        "trapezoid", "learning rate: warm-up, peak, decay to 0; noam: as in the Transformer paper"
    )
    learning_rate: PositiveFloat | None = _chosen("learning rate at its peak")
    warmup_steps: PositiveInt | None = _chosen("updates until the learning rate peaks")
    decay_fraction: Fraction = setting(0.4, "last part of training, in which the trapezoid decays")
    label_smoothing: Rate = setting(0.1, "probability spread over all tokens except the true one")
    criterion: Literal["bleu", "chrf", "loss"] | None = _chosen(
        "validation metric that selects the best checkpoint; loss needs no translations"
    )
    validation_steps: PositiveInt | None = _chosen("updates between validations")
    checkpoint_steps: PositiveInt | None = setting(
        None, "updates between checkpoints; default: one before each validation"
    )
    keep_checkpoints: PositiveInt = setting(
        5, "newest checkpoints to keep besides the best; the validated ones are averaged at the end"
    )
    patience: PositiveInt | None = setting(
        None,
        "stop after this many validations without a better checkpoint, counted once the learning "
        "rate has fallen below its peak; default: never stop early",
    )
    accumulation_steps: PositiveInt = setting(1, "batches whose gradients make one update")
    batch_parts: PositiveInt | None = _chosen("parts of a batch that run at the same time on a CPU")
    clip_norm: PositiveFloat | None = setting(None, "limit of the gradients' norm; default: none")
    weight_decay: Annotated[float, Field(ge=0, le=1)] | None = _chosen(
        "each update shrinks matrices by this times the learning rate; 0 for no decay"
    )
    tensorboard: bool = setting(False, "also log for TensorBoard; needs the package tensorboard")
    deterministic: bool = setting(False, "give the same bits every time; slower on a GPU")
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = setting(
        "float32", "precision of activations and matrix products; weights stay float32"
    )
    devices: str | None = setting(None, "a number of GPUs, gpu:0,gpu:1 or cpu; default: every GPU")

    initialize_from: str | None = setting(
        None, "begin with the best weights of this run, and keep its model and its tokenizers"
    )

    LENGTHS: ClassVar = ("steps", "epochs", "minutes")

    @model_validator(mode="after")
    def _check(self) -> "TrainingConfig":
        lengths = [flag(name) for name in self.LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise ValueError(f"{' and '.join(lengths)} each set when training ends. Give one.")
        return self


@dataclass(frozen=True, config=CHECKED)
class RunConfig:
    """Everything that defines a training run; `run.toml` has a table for each field.

    Attributes:
        model: The configuration of an architecture, as an object or as the table `[model]`; the
            default is the preset tiny. The sizes of its vocabularies are None until the tokenizers
            exist.
        chosen: The reason for each setting that the recipe chose, by names such as
            `"training.warmup_steps"`; `"for"` names the corpus, the budget and the devices.

    Raises:
        pydantic.ValidationError: A setting is unknown or has an invalid value.
    """

    data: DataConfig
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    model: ModelConfig | None = Field(None, validate_default=True)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    chosen: dict[str, str] = Field(default_factory=dict)

    @field_validator("model", mode="before")
    @classmethod
    def _model_of_table(cls, table: Any, info: ValidationInfo) -> ModelConfig:
        """Build the model's configuration from its table, with missing sizes from the preset."""
        if isinstance(table, ModelConfig):
            return table
        given = dict(table or {})
        architecture = str(given.pop("architecture", "transformer"))
        sizes = require_preset(str(given.pop("preset", "tiny")), architecture)
        config = ARCHITECTURES[architecture].config
        known = fields_of(config)
        for name in set(given) - set(known):
            if others := [n for n, row in ARCHITECTURES.items() if name in fields_of(row.config)]:
                raise ValueError(
                    f"{name} is not a setting of the architecture {architecture}, but of "
                    f"{', '.join(others)}. Omit it or choose another architecture."
                )
        chosen_later = {name: None for name in CHOSEN_RATES if name in known}
        tie = info.data["tokenizer"].joint if "tokenizer" in info.data else True
        try:
            return config(**{"tie_embeddings": tie, **sizes, **chosen_later, **given})
        except ValidationError as error:
            raise ValueError(_one_line(error, known)) from None

    @model_validator(mode="after")
    def _check(self) -> "RunConfig":
        if self.model.tie_embeddings and not self.tokenizer.joint:
            raise ValueError(
                "tie_embeddings needs one vocabulary for both sides. Omit tie_embeddings or train "
                "a joint tokenizer (--joint)."
            )
        if lack := self.model.lack_of_positions(self.data.max_length):
            needed = self.model.num_positions(self.data.max_length)
            raise ValueError(f"{lack} Set max_positions={needed}, or a smaller max_length.")
        able = [name for name, row in ARCHITECTURES.items() if row.trains_on_text]
        if not self.data.has_sources and self.architecture not in able:
            raise ValueError(
                f"text without translations cannot train the architecture {self.architecture}. "
                f"Give translations, or choose another --architecture: {', '.join(able)}."
            )
        if not self.data.has_sources and not self.tokenizer.joint:
            raise ValueError("--no-joint needs text of two sides, not of one. Omit it.")
        return self

    @property
    def architecture(self) -> str:
        """The name of the model's architecture."""
        return architecture_name(self.model)

    @classmethod
    def from_dict(cls, tables: Tables, where: str = "configuration") -> "RunConfig":
        """Build a configuration from tables of plain values; error messages begin with `where`.

        Missing settings get their defaults, and missing sizes of `[model]` those of its preset.

        Raises:
            ConfigError: A setting is unknown (a similar one is suggested) or has an invalid value.
        """
        # Because pydantic converts the strings of the command line, it would also read true as 1.
        for table, fields in SETTINGS.items():
            for name, field in fields.items():
                value = tables.get(table, {}).get(name)
                values = value if isinstance(value, list) else [value]
                if bool not in kinds_of(field) and any(isinstance(v, bool) for v in values):
                    raise ConfigError(f"{where}: [{table}] {name} is not true or false.")
        try:
            return cls(**{"data": {}, **tables})
        except ValidationError as error:
            raise ConfigError(f"{where}: {_one_line(error, SETTINGS)}") from None

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return tables of plain values, without the settings that are None."""
        tables = {"data": {}, "tokenizer": {}, "model": {"architecture": self.architecture}}
        for key, value in self.settings().items():
            table, _, name = key.partition(".")
            if value is not None:
                tables.setdefault(table, {})[name] = value
        return {**tables, "chosen": self.chosen} if self.chosen else tables

    def to_toml(self) -> str:
        """Return the complete configuration as the text of a run.toml."""
        return tomli_w.dumps(self.to_dict())

    def settings(self) -> dict[str, Any]:
        """Return the value of each setting, by names such as `"training.warmup_steps"`."""
        return {
            f"{table}.{name}": _plain(getattr(getattr(self, table), name))
            for table in SETTINGS
            for name in fields_of(type(getattr(self, table)))
        }


def _plain(value: Any) -> Any:
    """Return the value of a list of one, and any other value as it is."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _settings_of_all_architectures() -> dict[str, FieldInfo]:
    """Return the settings of `[model]`; their help names the architectures if not all have one."""
    sizes = "sizes: tiny; for a transformer also small, base or big"
    text = f"one of {', '.join(ARCHITECTURES)}"
    choice = {
        "architecture": FieldInfo(annotation=str, default="transformer", description=text),
        "preset": FieldInfo(annotation=str, default="tiny", description=sizes),
    }
    owners: dict[str, list[str]] = {}
    for architecture, row in ARCHITECTURES.items():
        for name in fields_of(row.config):
            owners.setdefault(name, []).append(architecture)
    for name, architectures in owners.items():
        row = ARCHITECTURES[architectures[0]]
        field = fields_of(row.config)[name]
        text, default = field.description, field.default
        if len(architectures) < len(ARCHITECTURES):
            text += f" [{', '.join(architectures)}]"
        if name in row.presets["tiny"]:
            text, default = f"{text} (default: as in the preset)", None
        elif name in CHOSEN_RATES:
            text, default = _chosen(text).description, None
        choice[name] = FieldInfo(annotation=field.annotation, default=default, description=text)
    return choice


SETTINGS: dict[str, dict[str, FieldInfo]] = {
    "data": fields_of(DataConfig),
    "tokenizer": fields_of(TokenizerConfig),
    "model": _settings_of_all_architectures(),
    "training": fields_of(TrainingConfig),
}
"""The settings of each table; `[model]` has those of all architectures."""


def kinds_of(field: FieldInfo) -> list[Any]:
    """Return the types that the value of a field may have, and the values of a `Literal`."""
    kinds = [field.annotation]
    for kind in kinds:  # which grows
        kinds += get_args(kind)
    return kinds


def flag(name: str) -> str:
    """Return the command-line option of a setting."""
    return f"--{name.replace('_', '-')}"


def merge(tables: Tables, given: Tables) -> dict[str, Any]:
    """Return `tables` updated with the settings of `given`.

    A given preset or architecture replaces the sizes in `tables`, and a given length of training
    (`steps`, `epochs` or `minutes`) replaces the length in `tables`, whatever its unit.
    """
    merged = dict(tables)
    for name, settings in given.items():
        table, dropped = tables.get(name, {}), set()
        architecture = table.get("architecture", "transformer")
        is_other = settings.get("architecture", architecture) != architecture
        if name == "model" and ("preset" in settings or is_other):
            rows = ARCHITECTURES.values()
            dropped = {key for row in rows for sizes in row.presets.values() for key in sizes}
        if name == "training" and {*TrainingConfig.LENGTHS} & {*settings}:
            dropped = set(TrainingConfig.LENGTHS)
        merged[name] = {k: v for k, v in table.items() if k not in dropped} | dict(settings)
    return merged


def without_choices(tables: Tables) -> dict[str, Any]:
    """Return tables without the settings that the recipe chose, so that it chooses them again."""
    chosen = tables.get("chosen", {})
    return {
        name: {key: value for key, value in table.items() if f"{name}.{key}" not in chosen}
        for name, table in tables.items()
        if name != "chosen"
    }


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file into tables.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    try:
        tables = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}.") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            owners = [f"below [{each}]" for each, fields in SETTINGS.items() if name in fields]
            advice = f"write it {' or '.join(owners)}" if owners else f"write [{name}]"
            raise ConfigError(f"{path}: {name} is in no table; {advice}.")
    return tables


def invalid(name: str, error: Mapping[str, Any]) -> str:
    """Return the message for an error that pydantic found in a setting, with the received value."""
    message = error["msg"]
    return f"{name}: {message[0].lower()}{message[1:]}; received {error['input']!r}."


def _one_line(error: ValidationError, known: Mapping[str, Any]) -> str:
    """Return the first error as one line; `known` has the known settings, or their tables."""
    first = error.errors()[0]
    # The place in a list is a number.
    *tables, name = [key for key in first["loc"] if isinstance(key, str)] or ("",)
    where = "".join(f"[{table}] " for table in tables)
    if first["type"] == "value_error":
        message = first["msg"].removeprefix("Value error, ")
        return f"[{name}] {message}" if name else message
    if first["type"] == "unexpected_keyword_argument":
        advice = did_you_mean(name, known[tables[0]] if tables else known)
        return f"{where}{name!r} is unknown: {advice}"
    return invalid(f"{where}{name}", first)
