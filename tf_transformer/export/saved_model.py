"""SavedModels on disk: numbered versions, each of which appears whole or not at all."""

import json
import pathlib
import shutil
import uuid

import tensorflow as tf

from tf_transformer.config import InputError


class ExportError(InputError):
    """A SavedModel that cannot be written or read."""


def versions(path):
    """The version numbers in a folder `saved_models/NAME`, ascending."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return []
    return sorted(
        int(entry.name)
        for entry in folder.iterdir()
        if entry.name.isdecimal() and (entry / "saved_model.pb").is_file()
    )


def find_saved_model(path):
    """The SavedModel at `path`: `path` itself, or the highest version in it.

    Raises:
        ExportError: there is none.
    """
    path = pathlib.Path(path)
    if (path / "saved_model.pb").is_file():
        return path
    found = versions(path)
    if not found:
        raise ExportError(
            f"{path}: no SavedModel there. Write one with: tf-transformer export RUN_DIR {path}"
        )
    return path / str(found[-1])


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
        path: folder of the versions, such as `saved_models/de_en`.
        version: int greater than 0, or None for one more than the highest there.
        manifest: dict of plain values, kept in `assets.extra/tf_transformer.json`.
        overwrite: bool, whether a version that exists may be replaced.

    Returns:
        `pathlib.Path` of the version.

    Raises:
        ExportError: the version exists and `overwrite` is False, or it is no valid number.
    """
    folder = pathlib.Path(path)
    if version is None:
        version = max(versions(folder), default=0) + 1
    if version < 1:
        raise ExportError(f"version must be 1 or more; received version={version}.")
    target = folder / str(version)
    if target.exists() and not overwrite:
        raise ExportError(
            f"{target} exists already. Choose another --version, leave it out for the next "
            f"free one, or replace it with --overwrite."
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename. TF Serving looks at numbers only.
    temporary = folder / f".writing-{version}-{uuid.uuid4().hex[:8]}"
    try:
        tf.saved_model.save(
            translator, str(temporary), signatures={"serving_default": translator.translate}
        )
        extra = temporary / "assets.extra"
        extra.mkdir()
        text = json.dumps(manifest or {}, indent=2, ensure_ascii=False, sort_keys=True)
        (extra / "tf_transformer.json").write_text(text + "\n", encoding="utf-8")
        if target.exists():
            replaced = folder / f".replaced-{version}-{uuid.uuid4().hex[:8]}"
            target.rename(replaced)
            try:
                temporary.rename(target)
            except OSError:
                replaced.rename(target)
                raise
            shutil.rmtree(replaced)
        else:
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
