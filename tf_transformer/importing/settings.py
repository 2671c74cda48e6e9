"""Settings and vocabularies in the files of another engine, and our configuration of its model."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from tf_transformer.importing.tensors import ForeignModelError, existing
from tf_transformer.models.model_configs import AttentionConfig, TransformerConfig


def read_yaml(
    path: pathlib.Path, loader: type = yaml.SafeLoader, content: str | bytes | None = None
) -> dict[str, Any]:
    """Return the table of a YAML file, or that of a text in the file `path`."""
    content = existing(path).read_bytes() if content is None else content
    try:
        return dict(yaml.load(content, loader))
    except (yaml.YAMLError, ValueError, TypeError):
        raise ForeignModelError(f"{path}: is no table of settings in YAML.") from None


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    content = existing(path).read_bytes()
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        raise ForeignModelError(f"{path}: is no JSON object. Download it again.") from None


def by_id(path: pathlib.Path, ids: Mapping[str, Any]) -> list[str]:
    """Return subwords in the order of their ids; messages name the path of the table."""
    subwords = {int(index): subword for subword, index in ids.items()}
    if sorted(subwords) != list(range(len(ids))):
        raise ForeignModelError(f"{path}: does not give each subword an id of its own from 0 on.")
    return [subwords[index] for index in range(len(ids))]


def config_of(
    path: pathlib.Path,
    theirs: Mapping[str, Any],
    names: Mapping[str, str],
    fixed: Mapping[str, Sequence[Any]],
    kind: type[AttentionConfig] = TransformerConfig,
    **settings: Any,
) -> AttentionConfig:
    """Return the configuration of a model.

    Args:
        path: The file of the foreign settings, for messages.
        theirs: The foreign settings.
        names: The names of foreign settings, by our names.
        fixed: The values of foreign settings that our model computes, the usual one first.
        kind: The class of the configuration.
        **settings: Other settings of ours.
    """
    for name, values in fixed.items():
        if theirs.get(name, values[0]) not in values:
            raise ForeignModelError(
                f"{path}: {name} is {theirs[name]!r}; only {values[0]!r} can be imported."
            )
    if missing := [name for name in names.values() if name not in theirs]:
        raise ForeignModelError(f"{path}: lacks the setting {missing[0]!r}. Download it again.")
    try:
        return kind(**{ours: theirs[name] for ours, name in names.items()}, **settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = names.get(str(first["loc"][-1]) if first["loc"] else "", "a setting")
        raise ForeignModelError(f"{path}: {name}: {first['msg']}.") from None


def not_carried_over(
    path: pathlib.Path, settings: Mapping[str, Any], neutral: Mapping[str, float]
) -> list[str]:
    """Return a line about settings of a search that an import drops.

    `neutral` has their names, and the numbers that change nothing; nor does what is off or empty.
    """
    lost = []
    for name, number in neutral.items():
        value = str(settings.get(name)).lower()
        if value not in ("none", "false", "", "[]", "{}", str(number), f"{number}.0"):
            lost.append(f"{name}={settings[name]}")
    return [f"Not carried over from {path}: {', '.join(lost)}."] if lost else []
