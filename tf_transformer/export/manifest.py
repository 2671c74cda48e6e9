"""The manifest of an export: what it was made from, and the SHA-256 of each of its files.

It is plain JSON, and checking a version runs and unpickles nothing. It finds damage and careless
changes; who can change a file can change the manifest too, so it is no signature.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tf_transformer.errors import InputError
from tf_transformer.files import sha256

# A folder of this name belongs to the model and is read by no loader of SavedModels.
EXTRA = "assets.extra"
MANIFEST = "tf_transformer.json"
_SCHEMA = 1
_PACKAGES = ("tf_transformer", "tensorflow", "keras", "tensorflow-text", "sentencepiece")
_REMEDY = "Copy the version again from where it was exported, or export it again."


class ManifestError(InputError):
    """A version that is not as it was exported, or has no manifest to tell."""


def manifest_path(folder: str | os.PathLike[str]) -> pathlib.Path:
    """Where the manifest of a version is: of CTranslate2 beside its files, else in a folder."""
    inside, beside = (pathlib.Path(folder, *names) for names in ((EXTRA, MANIFEST), (MANIFEST,)))
    return beside if beside.is_file() and not inside.is_file() else inside


def write_manifest(
    folder: pathlib.Path, manifest: Mapping[str, Any] | None, subfolder: str = ""
) -> None:
    """Writes the manifest of a version whose other files are complete.

    Args:
        folder: The folder of the version.
        manifest: What describes it, plain values. Added are `schema`, the number of this form,
            `versions` of libraries, `created`, and `files`, the SHA-256 of each by its path.
        subfolder: Where in the folder: `EXTRA`, or beside the files.
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
    """The manifest of a version, such as `saved_models/NAME/1`.

    Args:
        folder: The folder of the version.

    Returns:
        Plain values; `files` has the SHA-256 of every other file of the version by its path.

    Raises:
        ManifestError: It is missing, is not JSON, or names no files.
    """
    path = manifest_path(folder)
    try:
        manifest = json.loads(path.read_bytes())
        files = manifest["files"]
        if not all(isinstance(text, str) for pair in files.items() for text in pair):
            raise TypeError("not text")
    except (FileNotFoundError, NotADirectoryError):
        raise ManifestError(
            f"{folder}: has no manifest ({EXTRA}/{MANIFEST}), so its files cannot be checked. "
            f"{_REMEDY}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ManifestError(
            f"{path}: is no manifest with the SHA-256 of each file, so they cannot be checked. "
            f"{_REMEDY}"
        ) from None
    return manifest


def verify_files(folder: str | os.PathLike[str]) -> list[str]:
    """A line for each file of a version that is not as its manifest says; none when all are.

    Args:
        folder: The folder of the version.

    Raises:
        OSError: A file cannot be read.
    """
    try:
        expected = read_manifest(folder)["files"]
    except ManifestError as error:
        return [str(error)]
    folder = pathlib.Path(folder)
    found = dict(_entries(folder))
    problems = []
    for name in sorted(expected.keys() | found.keys()):
        path = folder / name
        if name not in found:
            problems.append(f"{path}: is missing. {_REMEDY}")
        elif name not in expected:
            problems.append(f"{path}: was not there when the version was exported. Remove it.")
        # What is no file might block, or never end.
        elif not found[name].is_file():
            problems.append(f"{path}: is no file any more. {_REMEDY}")
        elif (digest := sha256(found[name])) != expected[name]:
            problems.append(
                f"{path}: was changed after the export: its SHA-256 is {digest} and not "
                f"{expected[name]}. {_REMEDY}"
            )
    return problems


def verify(folder: str | os.PathLike[str]) -> None:
    """Raises unless every file of a version is as it was exported.

    Args:
        folder: The folder of the version.

    Raises:
        ManifestError: Names the first file that is not.
        OSError: A file cannot be read.
    """
    problems = verify_files(folder)
    if problems:
        raise ManifestError(problems[0])


def _entries(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """All that is in a version but plain folders and its manifest, by relative path."""
    for path in sorted(folder.rglob("*")):
        # A link to a folder is not searched, so it counts as something that is there.
        if (path.is_symlink() or not path.is_dir()) and path != manifest_path(folder):
            yield path.relative_to(folder).as_posix(), path
