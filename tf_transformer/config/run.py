"""The configuration of a run: all tables of its run.toml, read, checked, merged and written."""

import copy
import dataclasses
import os
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w

from tf_transformer.config.tables import DataConfig, ModelChoice, TokenizerConfig, TrainingConfig
from tf_transformer.errors import ConfigError, did_you_mean
from tf_transformer.models.architectures import (
    ARCHITECTURES,
    architecture_name,
    preset,
    require_architecture,
)
from tf_transformer.models.configs import ModelConfig
from tf_transformer.settings import from_table, recipe_settings, settings_of


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
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    model: ModelConfig | None = None
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    chosen: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Fills in the default model, and checks what concerns two tables."""
        if self.model is None:
            tiny = preset("tiny")
            chosen_later = dict.fromkeys(recipe_settings(type(tiny)))
            model = dataclasses.replace(tiny, tie_embeddings=self.tokenizer.joint, **chosen_later)
            object.__setattr__(self, "model", model)
        if self.model.tie_embeddings and not self.tokenizer.joint:
            raise ConfigError(
                "tie_embeddings needs one vocabulary for both sides. Omit tie_embeddings or "
                "train a joint tokenizer (--joint)."
            )
        # A search gives the decoder the begin token and max_length tokens after it.
        needed, limit = self.data.max_length + 1, self.model.position_limit
        if limit is not None and needed > limit:
            raise ConfigError(
                f"max_length={self.data.max_length} needs {needed} positions, and the model learns "
                f"max_positions={limit}. Set max_positions={needed}, or a smaller max_length."
            )
        if not self.data.has_sources:
            self._require_language_model()

    def _require_language_model(self) -> None:
        """Raises a `ConfigError` unless text without translations is enough for the model."""
        corpus, name = self.data.corpus, architecture_name(self.model)
        able = [other for other, row in ARCHITECTURES.items() if row.trains_on_text]
        if name not in able:
            raise ConfigError(
                f"the corpus {corpus!r} has no translations, from which the architecture {name} "
                f"learns. Give them, or choose another --architecture: {', '.join(able)}."
            )
        if not self.tokenizer.joint:
            raise ConfigError(
                f"--no-joint asks for a vocabulary of each side, but the corpus {corpus!r} has one "
                f"side. Omit it."
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
            return cls(data, tokenizer, model, training, _chosen(tables.get("chosen", {}), where))
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
    """The settings of each table of run.toml, where the model is of this architecture.

    Raises:
        ConfigError: The architecture is unknown.
    """
    row = require_architecture(architecture)
    choice = settings_of(ModelChoice)
    for number, field in enumerate(choice):
        if field.name == "preset":
            choice[number] = copy.copy(field)
            choice[number].metadata = {**field.metadata, "choices": tuple(row.presets)}
    return {
        "data": settings_of(DataConfig),
        "tokenizer": settings_of(TokenizerConfig),
        "model": [*choice, *settings_of(row.config)],
        "training": settings_of(TrainingConfig),
    }


def architectures_with(name: str) -> list[str]:
    """The architectures whose models have a setting of this name."""
    return [key for key, row in ARCHITECTURES.items() if name in names_of(row.config)]


def names_of(config: type) -> list[str]:
    """The names of a configuration's settings."""
    return [field.name for field in settings_of(config)]


def _chosen(table: Mapping[str, Any], where: str) -> dict[str, str]:
    """The notes of a recipe."""
    for key, reason in table.items():
        if not isinstance(reason, str):
            raise ConfigError(f"{where}: [chosen] {key} must be str; received {reason!r}.")
    return dict(table)


def _model_from_table(
    table: Mapping[str, Any], tokenizer: TokenizerConfig, where: str
) -> ModelConfig:
    """The model's configuration: that of the preset, changed by the table."""
    names = names_of(ModelChoice)
    choice = from_table(ModelChoice, {k: v for k, v in table.items() if k in names}, where)
    row = ARCHITECTURES[choice.architecture]
    given = {key: value for key, value in table.items() if key not in names}
    for name in set(given) - set(names_of(row.config)):
        if others := architectures_with(name):
            raise ConfigError(
                f"{where} {name} is no setting of the architecture {choice.architecture}, "
                f"but of {', '.join(others)}. Omit it or choose another architecture."
            )
    defaults = {"tie_embeddings": tokenizer.joint, **row.presets[choice.preset]}
    config = from_table(row.config, {**defaults, **given}, where)
    chosen_later = dict.fromkeys(set(recipe_settings(row.config)) - set(given))
    return dataclasses.replace(config, **chosen_later)


def merge_tables(
    tables: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The tables of a file with the settings that the command line gives, which win.

    A preset or another architecture on the command line replaces the sizes in the file, and a
    length of training (`steps`, `epochs`, `minutes`) the length in the file, whatever its unit.
    """
    merged = dict(tables)
    for name, settings in given.items():
        table = tables.get(name, {})
        if not isinstance(table, Mapping):
            continue  # `RunConfig.from_dict` raises the error
        dropped: set[str] = set()
        chosen = settings.get("architecture")
        other = chosen not in (None, table.get("architecture", ModelChoice.architecture))
        if name == "model" and ("preset" in settings or other):
            presets = [p for row in ARCHITECTURES.values() for p in row.presets.values()]
            dropped = {key for sizes in presets for key in sizes}
        if name == "training" and set(TrainingConfig.LENGTHS) & set(settings):
            dropped = set(TrainingConfig.LENGTHS)
        kept = {key: value for key, value in table.items() if key not in dropped}
        merged[name] = {**kept, **settings}
    if isinstance(merged.get("chosen"), Mapping):
        merged["chosen"] = {
            key: reason
            for key, reason in merged["chosen"].items()
            if key == "for" or _value(merged, key) == _value(tables, key) is not None
        }
    return merged


def without_choices(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables without the settings that a recipe chose, so that it chooses again."""
    chosen = tables.get("chosen", {})

    def left(name: str, table: Any) -> Any:
        if not isinstance(table, Mapping):
            return table  # `RunConfig.from_dict` raises the error
        return {key: value for key, value in table.items() if f"{name}.{key}" not in chosen}

    return {name: left(name, table) for name, table in tables.items() if name != "chosen"}


def _value(tables: Mapping[str, Any], key: str) -> Any:
    """The value of a setting by its name with its table, such as `"training.steps"`."""
    table, _, name = key.partition(".")
    return tables[table].get(name) if isinstance(tables.get(table), Mapping) else None


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
