"""The configuration of a run: its tables are read, merged, checked and written here."""

import copy
import os
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any, get_args

import tomli_w
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from tf_transformer.config_fields import CHECKED, Trait, fields_of, has_trait
from tf_transformer.errors import ConfigError, did_you_mean
from tf_transformer.models.architectures import ARCHITECTURES, architecture_name, require_preset
from tf_transformer.models.model_configs import ModelConfig
from tf_transformer.run_tables import DataConfig, TokenizerConfig, TrainingConfig

Tables = Mapping[str, Mapping[str, Any]]


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

    Example:
        >>> tables = {"data": {"corpus": "phrasebook"}, "training": {"minutes": 5}}
        >>> config = tt.RunConfig.from_dict(tables)
        >>> config.training.minutes, config.model.num_layers
        (5.0, 4)
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
        chosen_later = {
            name: None for name, field in known.items() if has_trait(field, Trait.CHOSEN)
        }
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
        if self.data.row_length and not self.model.packs:
            of = " with begin_source" if getattr(self.model, "begin_source", False) else ""
            raise ValueError(f"row_length packs no rows for {self.architecture}{of}. Set it to 0.")
        able = [name for name, row in ARCHITECTURES.items() if row.config.trains_on_text]
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
    """Return a value of JSON: that of a list of one, a list for a tuple, otherwise the value."""
    return value if not isinstance(value, tuple) else value[0] if len(value) == 1 else [*value]


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
        choice[name] = field = copy.copy(fields_of(row.config)[name])
        if len(architectures) < len(ARCHITECTURES):
            text, *end = field.description.split(" (default")
            field.description = " (default".join([f"{text} [{', '.join(architectures)}]", *end])
        if name in row.presets["tiny"]:
            field.description += " (default: as in the preset)"
        if name in row.presets["tiny"] or has_trait(field, Trait.CHOSEN):
            field.default = None
    return choice


def names_with(trait: Trait) -> set[str]:
    """Return the names, such as `"training.seed"`, of the settings that have a trait."""
    return {
        f"{table}.{name}"
        for table, fields in SETTINGS.items()
        for name, field in fields.items()
        if has_trait(field, trait)
    }


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
    # A setting in the wrong table explains why another one is missing.
    first = min(error.errors(), key=lambda each: each["type"] != "unexpected_keyword_argument")
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
