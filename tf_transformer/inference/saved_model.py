"""SavedModels on disk: their versions, and how one is found and loaded.

TensorFlow is imported where one is loaded, so that commands refuse a wrong path at once.
"""

import os
import pathlib
from typing import Any

from tf_transformer.errors import InputError

SAVED_MODEL = "saved_model.pb"  # the file that every SavedModel has


class SavedModelError(InputError):
    """A SavedModel that cannot be found or loaded."""


def versions(path: str | os.PathLike[str]) -> list[int]:
    """The version numbers in a folder such as `saved_models/NAME`, ascending, of any format."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())


def find_saved_model(path: str | os.PathLike[str]) -> pathlib.Path:
    """The SavedModel at `path`: `path` itself, or the highest version in it.

    Raises:
        SavedModelError: There is none.
    """
    path = pathlib.Path(path)
    candidates = [path, *(path / str(number) for number in reversed(versions(path)))]
    for candidate in candidates:
        if (candidate / SAVED_MODEL).is_file():
            return candidate
    if any((folder / "model.bin").exists() for folder in candidates):
        raise SavedModelError(
            f"{path}: holds a CTranslate2 model, which that engine loads. Write a SavedModel with: "
            f"tf-transformer export RUN_DIR saved_models/ANOTHER_NAME"
        )
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
        SavedModelError: It is damaged.
    """
    import tensorflow as tf

    try:
        # By its text TensorFlow would take `..` out of a path, links or not.
        return tf.saved_model.load(os.path.realpath(folder))
    except PermissionError:
        raise
    # TensorFlow has as many classes of error as a SavedModel has files.
    except (OSError, IndexError, ValueError, RuntimeError, tf.errors.OpError) as error:
        raise SavedModelError(
            f"{folder}: the SavedModel is damaged or incomplete. "
            f"Copy it again, or write it again with tf-transformer export."
        ) from error
