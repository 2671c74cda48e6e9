"""Versions of an export, each written atomically with a manifest of its origin and its files.

The manifest is plain JSON, and checking a version runs and unpickles nothing. A check finds damage
and careless changes. Whoever can change a file can change the manifest too, so it is no signature.
"""

import datetime
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tf_transformer.errors import InputError
from tf_transformer.files import obstacle, sha256, without_parents
from tf_transformer.inference.versions import (
    CTRANSLATE2,
    SAVED_MODEL,
    formats_in,
    holds_run,
    require_loadable,
    version_number,
    versions,
)

# A folder of this name is a part of a SavedModel that its loaders ignore.
EXTRA = "assets.extra"
MANIFEST = "tf_transformer.json"
_FORMATS = {SAVED_MODEL: "SavedModels", CTRANSLATE2: "CTranslate2 models"}
_SCHEMA = 1
_PACKAGES = ("tf_transformer", "tensorflow", "keras", "tensorflow-text", "sentencepiece")
_REMEDY = "Copy the version again from where it was exported, or export it again."


class ExportError(InputError):
    """An export that cannot be written, or checked by its manifest."""


def version_folder(
    file_format: str,
    path: str | os.PathLike[str],
    version: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Return the folder of a new version, which `atomic_folder` can write.

    TensorFlow Serving reads only folders named by a number, so it sees no incomplete version.

    Args:
        file_format: `SAVED_MODEL` or `CTRANSLATE2`. A server takes the highest version of a
            folder, so all in it are of one format.
        path: Folder of the versions, such as `saved_models/de_en`.
        version: A number from 1 to 2^63 - 1; None means one more than the highest in `path`.
        overwrite: Whether a version that exists may be replaced.

    Raises:
        ExportError: The version exists and may not be replaced, its number is invalid, or the
            folder is a file, or holds a run or another format.
    """
    folder = without_parents(path)
    found = versions(folder)
    if version is None:
        version = max(found, default=0) + 1
    if not version_number(str(version)):
        raise ExportError(f"version must be from 1 to 2^63 - 1; received version={version}.")
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"{folder}: is a file. Give a folder, such as saved_models/NAME.")
    if problem := obstacle(folder):
        raise ExportError(problem)
    if holds_run(folder):
        raise ExportError(f"{folder}: holds a run. Give another folder: saved_models/NAME.")
    for other in formats_in(folder):
        if other != file_format:
            raise ExportError(f"{folder}: holds {_FORMATS[other]}. Give another saved_models/NAME.")
    target = found.get(version, folder / str(version))
    if file_format == SAVED_MODEL:
        require_loadable(target)
    if target.exists() and not overwrite:
        raise ExportError(
            f"{target} exists already. Choose another --version, omit it for the next "
            f"free one, or replace it with --overwrite."
        )
    return target


def manifest_path(folder: str | os.PathLike[str]) -> Path:
    """Return the path of a manifest: in `EXTRA`, or beside the files of CTranslate2."""
    inside, beside = (Path(folder, *names) for names in ((EXTRA, MANIFEST), (MANIFEST,)))
    return beside if beside.is_file() and not inside.is_file() else inside


def write_manifest(folder: Path, manifest: Mapping[str, Any] | None, subfolder: str = "") -> None:
    """Write the manifest of a version whose other files are complete.

    The manifest has the plain values given, the versions of packages and the SHA-256 of each file.
    `subfolder` is `EXTRA`, or "" to write the manifest beside the files.
    """
    path = folder / subfolder / MANIFEST
    path.parent.mkdir(exist_ok=True)
    complete = {
        **(manifest or {}),
        "schema": _SCHEMA,
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "files": {name: sha256(file) for name, file in _entries(folder)},
    }
    text = json.dumps(complete, indent=2, ensure_ascii=False, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the manifest of a version; raise an `ExportError` if it is missing or invalid."""
    path = manifest_path(folder)
    try:
        manifest = json.loads(path.read_bytes())
        dict.items(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ExportError(
            f"{folder}: has no intact manifest ({path.name}) to check its files by. {_REMEDY}"
        ) from None
    return manifest


def verify_files(folder: str | os.PathLike[str]) -> list[str]:
    """Return a message for each file of a version that differs from the manifest."""
    try:
        expected = read_manifest(folder)["files"]
    except ExportError as error:
        return [str(error)]
    folder = Path(folder)
    found = dict(_entries(folder))
    problems = []
    for name in sorted(expected.keys() | found.keys()):
        path = folder / name
        if name not in expected:
            problems.append(f"{path}: was not there when the version was exported. Remove it.")
        # Reading anything but a regular file, such as a pipe, might block.
        elif name not in found or not found[name].is_file():
            problems.append(f"{path}: is missing. {_REMEDY}")
        elif sha256(found[name]) != expected[name]:
            problems.append(f"{path}: was changed after the export. {_REMEDY}")
    return problems


def _entries(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative path and path of all in a version but plain folders and the manifest."""
    for path in sorted(folder.rglob("*")):
        # A link to a folder is not followed, so the link itself counts as a file.
        if (path.is_symlink() or not path.is_dir()) and path != manifest_path(folder):
            yield path.relative_to(folder).as_posix(), path
