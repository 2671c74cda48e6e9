"""Numbered versions of a SavedModel, found without TensorFlow."""

import os
import pathlib

from tf_transformer.errors import InputError

# Each format of exports is recognized by a file that every version of it has.
SAVED_MODEL, CTRANSLATE2 = "saved_model.pb", "model.bin"


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
    problem = f"no SavedModel there. Write one with: tf-transformer export RUN_DIR {path}"
    if (path / "checkpoints").is_dir():
        problem = f"is a run. Export it: tf-transformer export {path} saved_models/NAME"
    elif [*path.glob(CTRANSLATE2), *path.glob(f"*/{CTRANSLATE2}")]:
        problem = "holds no SavedModel, but CTranslate2's files, which only CTranslate2 reads."
    elif models := sorted({str(file.parents[1]) for file in path.glob(f"*/*/{SAVED_MODEL}")}):
        problem = f"no SavedModel there, but in {', '.join(models)}. Give one of these."
    raise SavedModelError(f"{path}: {problem}")
