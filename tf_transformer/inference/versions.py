"""Numbered versions of a SavedModel: how one is found and loaded.

TensorFlow is only imported to load one, so that commands refuse a wrong path at once.
"""

import os
import pathlib
from typing import Any

from tf_transformer.errors import InputError

SAVED_MODEL = "saved_model.pb"  # the file that every SavedModel has


class SavedModelError(InputError):
    """A SavedModel that cannot be found or loaded."""


def versions(path: str | os.PathLike[str]) -> list[int]:
    """Returns the version numbers in a folder such as `saved_models/NAME`, ascending."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())


def find_saved_model(path: str | os.PathLike[str]) -> pathlib.Path:
    """Finds the SavedModel at `path`: `path` itself, or the highest version in it.

    Raises:
        SavedModelError: There is no SavedModel.
    """
    path = pathlib.Path(path)
    for candidate in (path, *(path / str(number) for number in reversed(versions(path)))):
        if (candidate / SAVED_MODEL).is_file():
            return candidate
    if (path / "config.toml").is_file():
        raise SavedModelError(
            f"{path}: is a training run, not a SavedModel. Export it first: "
            f"tf-transformer export {path} saved_models/NAME"
        )
    raise SavedModelError(
        f"{path}: no SavedModel there. Write one with: tf-transformer export RUN_DIR {path}"
    )


def load_saved_model(folder: pathlib.Path) -> Any:
    """Loads the SavedModel in a folder.

    Raises:
        SavedModelError: A file of it is missing or damaged.
    """
    import tensorflow as tf

    try:
        # TensorFlow resolves `..` by the text of a path, which is wrong for symbolic links.
        return tf.saved_model.load(os.path.realpath(folder))
    except PermissionError:
        raise
    # TensorFlow raises errors of many classes for damaged files.
    except (OSError, IndexError, ValueError, RuntimeError, tf.errors.OpError) as error:
        raise SavedModelError(
            f"{folder}: the SavedModel is damaged or incomplete. "
            f"Copy it again, or write it again with tf-transformer export."
        ) from error
