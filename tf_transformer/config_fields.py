"""Settings: fields of a dataclass that are also keys of a file and options of a command."""

import enum
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.fields import FieldInfo

CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)


class Trait(enum.Flag):
    """The ways in which a setting may be chosen, and may differ between runs and workers."""

    NONE = 0
    CHOSEN = enum.auto()  # by the recipe, where a run gives no value
    WEIGHTS = enum.auto()  # it changes the weights, so checkpoints note it
    FREE = enum.auto()  # a resumed run may have another value
    LOCAL = enum.auto()  # workers may have different values: names of files and devices
    TRANSLATOR = enum.auto()  # a run takes it from the run that initializes it


def setting(default: Any, help_text: str, traits: Trait = Trait.NONE) -> Any:
    """Return a field that is a setting."""
    if Trait.CHOSEN in traits:
        help_text += " (default: chosen for the corpus and the budget)"
    return Field(default, description=help_text, json_schema_extra={"traits": traits})


def optional(help_text: str, traits: Trait = Trait.NONE) -> Any:
    """Return a setting whose default is None."""
    return setting(None, help_text, traits)


def fields_of(config: type) -> dict[str, FieldInfo]:
    """Return the settings of a configuration by name: its fields with a description."""
    fields = config.__pydantic_fields__.items()
    return {name: field for name, field in fields if field.description}


def has_trait(field: FieldInfo, trait: Trait) -> bool:
    """Return whether a setting has a trait."""
    return trait in (field.json_schema_extra or {}).get("traits", Trait.NONE)


def flag(name: str) -> str:
    """Return the command-line option of a setting."""
    return f"--{name.replace('_', '-')}"
