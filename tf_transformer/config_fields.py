"""Settings: fields of a dataclass that are also keys of a file and options of a command."""

import re
from typing import Any, NamedTuple

from pydantic import ConfigDict, Field
from pydantic.fields import FieldInfo

CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)


class Traits(NamedTuple):
    """What may happen to a setting.

    Attributes:
        chosen: The recipe chooses it where a run gives no value.
        changes_weights: Checkpoints note it, and a run cannot resume with another value.
        may_change: A run may resume with another value.
        is_local: The workers of a run may have different values, since it names files or devices.
        of_translator: A translator needs it, so a run takes it from the run that initializes it.
        needs: The name of another setting, and a regular expression of the values with which this
            one has an effect.
    """

    chosen: bool = False
    changes_weights: bool = False
    may_change: bool = False
    is_local: bool = False
    of_translator: bool = False
    needs: tuple[str, str] | None = None


_NO_TRAITS = Traits()


def setting(default: Any, help_text: str, traits: Traits = _NO_TRAITS) -> Any:
    """Return a field that is a setting."""
    if traits.chosen:
        help_text += " (default: chosen for the corpus and the budget)"
    return Field(default, description=help_text, json_schema_extra={"traits": traits})


def fields_of(config: type) -> dict[str, FieldInfo]:
    """Return the settings of a configuration by name: its fields with a description."""
    fields = config.__pydantic_fields__.items()
    return {name: field for name, field in fields if field.description}


def traits_of(field: FieldInfo) -> Traits:
    """Return the traits of a setting."""
    return (field.json_schema_extra or {}).get("traits", _NO_TRAITS)


def flag(name: str) -> str:
    """Return the command-line option of a setting."""
    return f"--{name.replace('_', '-')}"


def require_effects(config: Any) -> None:
    """Raise a `ValueError` for a setting that was changed, and does nothing beside another one."""
    for name, field in fields_of(type(config)).items():
        other, values = traits_of(field).needs or (name, ".*")
        value = str(getattr(config, other))
        if getattr(config, name) != field.default and not re.fullmatch(values, value):
            raise ValueError(f"{flag(name)} does nothing with {flag(other)} {value}. Omit it.")
