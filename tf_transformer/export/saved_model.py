"""Export of a translator to a SavedModel, for TensorFlow Serving and any TensorFlow program."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_transformer.export.folding import freeze
from tf_transformer.export.manifest import EXTRA, ExportError, version_folder, write_manifest
from tf_transformer.export.tf_serving import write_server_files, write_version_files
from tf_transformer.files import atomic_folder
from tf_transformer.inference.graph import ExportTranslator
from tf_transformer.inference.translator import Translator
from tf_transformer.inference.versions import SAVED_MODEL
from tf_transformer.machine import only_errors_of_tensorflow, plain_graphs


def export_saved_model(
    translator: Translator | ExportTranslator,
    path: str | os.PathLike[str],
    version: int | None = None,
    manifest: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Write a translator and settings for TensorFlow Serving; return the folder `path/VERSION`.

    The same export by two processes has the same bytes, except for the time in the manifest. (A
    second export by one process differs, because a process numbers the names of its functions.)

    Args:
        translator: A translator of a model in memory, see `Translator.from_model`. A `Transformer`
            is exported in the form that `freeze` returns. An `ExportTranslator` is written as it
            is.
        path, version, overwrite: See `version_folder`.
        manifest: Plain values that describe it, see `write_manifest`.

    Raises:
        ExportError: The translator came from a SavedModel, TensorFlow cannot write the files, or
            `version_folder` raises it.

    Example:
        >>> path = tt.export_saved_model(translator, folder / "demo")
        >>> path.name
        '1'
        >>> tt.Translator.load(path)("a b") == translator("a b")
        True
    """
    module = translator
    if isinstance(translator, Translator):
        module = translator.module
        if not isinstance(module, ExportTranslator):
            raise ExportError("this translator came from a SavedModel; copy that folder instead.")
        model = freeze(module.searches.model, module.search.max_length)
        tokenizers = module.source.tokenizer, module.target.tokenizer
        module = ExportTranslator(model, *tokenizers, module.search)
    target = version_folder(SAVED_MODEL, path, version, overwrite)
    with atomic_folder(target, overwrite=overwrite) as folder:
        try:
            # A warning would name the temporary folder. A function whose call is traced with the
            # optimizer on is optimized again by a server, which then loads a fifth longer.
            with only_errors_of_tensorflow(), plain_graphs():
                tf.saved_model.save(module, str(folder), module.signatures())
        except tf.errors.OpError as error:
            reason = str(error.message).splitlines()[0]
            raise ExportError(f"{path}: cannot be written: {reason}. Free some space.") from error
        (folder / "fingerprint.pb").unlink()  # it has a random number
        write_version_files(folder, module.signatures())
        write_manifest(folder, manifest, EXTRA)
    write_server_files(path)
    return target
