"""The version of a model that the local server serves."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tf_transformer.errors import InputError
from tf_transformer.export import manifest
from tf_transformer.inference.versions import find_saved_model, version_number
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
    """Verify, load and warm up a version, or the highest one in a folder of versions.

    The model has the name of that folder. If there is a manifest, the files must be those of it.

    Raises:
        InputError: There is no version, or it cannot be served.
    """
    # Not the target of a link: a version may be a link to a folder of any name.
    folder = pathlib.Path(os.path.abspath(find_saved_model(path)))
    number = version_number(folder.name)
    if number is None:
        raise InputError(f"{folder}: a version must have a number for a name, such as {folder}/1.")
    known = {}
    if manifest.manifest_path(folder).is_file():
        if problems := manifest.verify_files(folder):
            raise InputError(problems[0])
        known = manifest.read_manifest(folder)
    try:
        with only_errors_of_tensorflow():
            model = SavedModelSession(folder)
        for signature, inputs in model.warm_up_requests():
            model.run(signature, inputs)
    # Loading a damaged SavedModel can raise many unrelated classes of errors.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{folder}: cannot be served ({reason[:200]}). "
            f"Copy the version again, or write it again with tf-transformer export."
        ) from error
    return Version(folder.parent.name, number, model, known)
