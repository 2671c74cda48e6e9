"""The version of a model that the local server serves."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tf_transformer.errors import InputError
from tf_transformer.export import manifest
from tf_transformer.inference.versions import SAVED_MODEL, find_saved_model, versions
from tf_transformer.machine import only_errors_of_tensorflow
from tf_transformer.serving.session import SavedModelSession


@dataclasses.dataclass
class Version:
    """A loaded version, with the name of its model and its manifest, which may be empty."""

    name: str
    number: int
    model: SavedModelSession
    manifest: Mapping[str, Any]


def load_version(path: str | os.PathLike[str]) -> Version:
    """Verify, load and warm up the highest version in a folder such as `saved_models/de_en`.

    The folder has the model's name. If the version has a manifest, its files must be those of it.

    Raises:
        InputError: There is no version, or the highest cannot be served.
    """
    path = pathlib.Path(path)
    if (path / SAVED_MODEL).is_file():
        advice = f"Give the folder of its versions: {path.resolve().parent}"
        raise InputError(f"{path}: is one version of a model. {advice}")
    find_saved_model(path)
    number, folder = max(versions(path).items())
    if not (folder / SAVED_MODEL).is_file():
        message = "holds no SavedModel, but a server takes the highest version. Remove it."
        raise InputError(f"{folder}: {message}")
    known = {}
    if manifest.manifest_path(folder).is_file():
        if problems := manifest.verify_files(folder):
            raise InputError(problems[0])
        known = manifest.read_manifest(folder)
    try:
        with only_errors_of_tensorflow():
            model = SavedModelSession(folder, threads=1)
        for signature, inputs in model.warm_up_requests():
            model.run(signature, inputs)
    # Loading a damaged SavedModel can raise many unrelated classes of errors.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{folder}: cannot be served ({reason[:200]}). "
            f"Copy the version again, or write it again with tf-transformer export."
        ) from error
    return Version(path.resolve().name, number, model, known)
