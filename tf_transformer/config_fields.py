"""The fields of configurations: settings with a help text, whose values pydantic checks."""

from typing import Any

from pydantic import ConfigDict, Field
from pydantic.fields import FieldInfo

CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)


def setting(default: Any, help_text: str) -> Any:
    """Return a field that is also a key of run.toml and an option of the command line."""
    return Field(default, description=help_text)


def fields_of(config: type) -> dict[str, FieldInfo]:
    """Return the settings of a configuration by name: its fields with a description."""
    fields = config.__pydantic_fields__.items()
    return {name: field for name, field in fields if field.description}
