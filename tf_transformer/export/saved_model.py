"""The SavedModel of a translator, as TensorFlow Serving and anything with TensorFlow loads it."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_transformer.export.versions import ExportError, write_manifest, write_version
from tf_transformer.inference.graph import ExportTranslator
from tf_transformer.inference.saved_model import SAVED_MODEL
from tf_transformer.inference.translator import Translator


def export_saved_model(
    translator: Translator,
    path: str | os.PathLike[str],
    version: int | None = None,
    manifest: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Writes a translator as `path/VERSION`.

    Args:
        translator: A translator of a model in memory, see `Translator.from_model`.
        path: Folder of the versions, such as `saved_models/de_en`.
        version: A number from 1 on; None is one more than the highest there.
        manifest: What describes it, plain values, kept in `assets.extra/tf_transformer.json`.
        overwrite: Whether a version that exists may be replaced.

    Returns:
        The folder of the version.

    Raises:
        ExportError: The translator came from a SavedModel, or as `write_version`.
    """
    module = translator.module
    if not isinstance(module, ExportTranslator):
        raise ExportError("this translator came from a SavedModel; copy that folder instead.")

    def write(folder: pathlib.Path) -> None:
        tf.saved_model.save(module, str(folder), signatures=module.signatures())
        extra = folder / "assets.extra"
        extra.mkdir()
        write_manifest(extra, manifest)

    return write_version(write, SAVED_MODEL, path, version, overwrite)
