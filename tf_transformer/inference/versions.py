"""Numbered versions of a SavedModel, found without TensorFlow."""

import os
import pathlib

from tf_transformer.errors import InputError

SAVED_MODEL = "saved_model.pb"  # the file that every SavedModel has


class SavedModelError(InputError):
    """A SavedModel that cannot be found or loaded."""


def versions(path: str | os.PathLike[str]) -> list[int]:
    """Return the version numbers in a folder such as `saved_models/NAME`, ascending."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())


def find_saved_model(path: str | os.PathLike[str]) -> pathlib.Path:
    """Find the SavedModel at `path`: `path` itself, or the highest version in it.

    Raises:
        SavedModelError: There is no SavedModel.
    """
    path = pathlib.Path(path)
    for candidate in (path, *(path / str(number) for number in reversed(versions(path)))):
        if (candidate / SAVED_MODEL).is_file():
            return candidate
    raise SavedModelError(
        f"{path}: no SavedModel there. Write one with: tf-transformer export RUN_DIR {path}"
    )
