"""SavedModels on disk: where they are found and how they are written."""

import pathlib

import tensorflow as tf

from tf_transformer.export.versions import (
    CTRANSLATE2,
    SAVED_MODEL,
    ExportError,
    versions,
    write_manifest,
    write_version,
)


def find_saved_model(path):
    """The SavedModel at `path`: `path` itself, or the highest version in it.

    Raises:
        ExportError: there is none.
    """
    path = pathlib.Path(path)
    candidates = [path, *(path / str(number) for number in reversed(versions(path)))]
    for candidate in candidates:
        if (candidate / SAVED_MODEL).is_file():
            return candidate
    if any((folder / CTRANSLATE2).exists() for folder in candidates):
        raise ExportError(
            f"{path}: holds a CTranslate2 model, which that engine loads. Write a SavedModel with: "
            f"tf-transformer export RUN_DIR saved_models/ANOTHER_NAME"
        )
    raise ExportError(
        f"{path}: no SavedModel there. Write one with: tf-transformer export RUN_DIR {path}"
    )


def load_saved_model(directory):
    """Loads the SavedModel in a folder.

    Raises:
        ExportError: it is damaged.
    """
    try:
        return tf.saved_model.load(str(directory))
    # TensorFlow has as many classes of error as a SavedModel has files.
    except (OSError, IndexError, ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ExportError(
            f"{directory}: the SavedModel is damaged or incomplete. "
            f"Copy it anew, or write it again with tf-transformer export."
        ) from error


def write_saved_model(translator, path, version=None, manifest=None, overwrite=False):
    """Writes a version of a translator.

    Args:
        translator: `ExportTranslator`.
        manifest: dict of plain values, kept in `assets.extra/tf_transformer.json`.
        path, version, overwrite: as `write_version`.

    Returns:
        `pathlib.Path` of the version.

    Raises:
        ExportError: as `write_version`.
    """

    def write(folder):
        tf.saved_model.save(translator, str(folder), signatures=translator.signatures())
        extra = folder / "assets.extra"
        extra.mkdir()
        write_manifest(extra, manifest)

    return write_version(write, SAVED_MODEL, path, version, overwrite)
