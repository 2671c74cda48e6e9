"""Settings: dataclass fields with a help text, and the checks they share."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from tf_transformer.errors import ConfigError, did_you_mean


def setting(
    default: Any, help_text: str, choices: tuple[str, ...] = (), *, recipe: bool = False
) -> Any:
    """A dataclass field that is also a key of run.toml and an option of the command line.

    Args:
        default: Its value where none is given.
        help_text: What it is, for `--help`.
        choices: Its possible values; none for any.
        recipe: Whether a run without it chooses a value, see `training/recipe.py`.
    """
    metadata = {"help": help_text, "choices": choices, "recipe": recipe}
    return dataclasses.field(default=default, metadata=metadata)


def settings_of(config: type) -> list[dataclasses.Field]:
    """The fields of a dataclass that are settings."""
    return [field for field in dataclasses.fields(config) if "help" in field.metadata]


def recipe_settings(config: type) -> list[str]:
    """The names of the settings that a recipe chooses where they are None."""
    return [field.name for field in settings_of(config) if field.metadata["recipe"]]


def flag(name: str) -> str:
    """The command-line option of a setting."""
    return f"--{name.replace('_', '-')}"


def require(condition: bool, name: str, value: Any, need: str) -> None:
    """Raises a `ConfigError` that says what the setting must be, unless the condition holds."""
    if not condition:
        raise ConfigError(f"{name} must be {need}; received {name}={value!r}.")


def require_positive(config: Any, *names: str) -> None:
    """Raises a `ConfigError` unless each of these settings is None or greater than 0."""
    for name in names:
        value = getattr(config, name)
        require(value is None or value > 0, name, value, "greater than 0")


def require_rate(config: Any, *names: str) -> None:
    """Raises a `ConfigError` unless each of these settings is None or in [0, 1)."""
    for name in names:
        value = getattr(config, name)
        require(value is None or 0 <= value < 1, name, value, "at least 0 and less than 1")


def require_choices(config: Any) -> None:
    """Raises a `ConfigError` unless each setting with choices has one of them."""
    for field in settings_of(type(config)):
        value, choices = getattr(config, field.name), field.metadata["choices"]
        if choices and value is not None and value not in choices:
            raise ConfigError(f"unknown {field.name} {value!r}: {did_you_mean(value, choices)}")


def from_table(config: type, table: Mapping[str, Any], where: str) -> Any:
    """Builds a dataclass from a table of plain values.

    Args:
        config: The dataclass.
        table: Its settings; those that are missing have their defaults.
        where: What errors name, such as `"run.toml: [data]"`.

    Raises:
        ConfigError: A key is unknown (the nearest is named), a type is wrong or a value invalid.
    """
    fields = {field.name: field for field in settings_of(config)}
    values = {}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"{where} has no key {key!r}: {did_you_mean(key, fields)}")
        values[key] = _checked_type(fields[key].type, value, f"{where} {key}")
    try:
        return config(**values)
    except ConfigError as error:
        raise ConfigError(f"{where} {error}") from None


def kinds_of(annotation: Any) -> list[type]:
    """The types that an annotation such as `int | None` allows, without None."""
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else [annotation]
    return [kind for kind in kinds if kind is not types.NoneType]


def _checked_type(annotation: Any, value: Any, where: str) -> Any:
    kinds = kinds_of(annotation)
    if float in kinds and type(value) is int:
        return float(value)
    if type(value) not in kinds:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(f"{where} must be {expected}; received {value!r}.")
    return value
