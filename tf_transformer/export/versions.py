"""Numbered versions of an export, such as `saved_models/NAME/3`, each written atomically."""

import errno
import os
import pathlib
from collections.abc import Callable

from tf_transformer.errors import InputError
from tf_transformer.files import atomic_folder, without_parents
from tf_transformer.inference.saved_model import SAVED_MODEL, versions

# Each format is known by a file that every version of it has.
CTRANSLATE2 = "model.bin"
_FORMATS = {SAVED_MODEL: "SavedModels", CTRANSLATE2: "CTranslate2 models"}


class ExportError(InputError):
    """An export that cannot be written."""


def write_version(
    write: Callable[[pathlib.Path], None],
    file_format: str,
    path: str | os.PathLike[str],
    version: int | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Writes a version.

    Args:
        write: Fills an empty folder.
        file_format: `SAVED_MODEL` or `CTRANSLATE2`. A server takes the highest version of a
            folder, so all in it are of one format.
        path: Folder of the versions, such as `saved_models/de_en`.
        version: A number from 1 on; None is one more than the highest there.
        overwrite: Whether a version that exists may be replaced.

    Returns:
        The folder of the version.

    Raises:
        ExportError: As `version_folder`, or another process has just written the version.
    """
    target = version_folder(file_format, path, version, overwrite)
    # TF Serving reads only folders named by a number, so it does not see an incomplete version.
    try:
        with atomic_folder(target, overwrite=overwrite) as temporary:
            write(temporary)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise ExportError(f"{target}: another process has just written it. Export again.") from None
    return target


def version_folder(
    file_format: str,
    path: str | os.PathLike[str],
    version: int | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """The folder that `write_version` would write with these arguments.

    Raises:
        ExportError: The version exists and may not be replaced, its number is invalid, or the
            folder is a file or holds another format.
    """
    folder = without_parents(path)
    if version is None:
        version = max(versions(folder), default=0) + 1
    if version < 1:
        raise ExportError(f"version must be 1 or more; received version={version}.")
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"{folder}: is a file. Give a folder, such as saved_models/NAME.")
    for other, what in _FORMATS.items():
        if other != file_format and any(folder.glob(f"*/{other}")):
            raise ExportError(f"{folder}: holds {what}. Give another saved_models/NAME.")
    target = folder / str(version)
    if target.exists() and not overwrite:
        raise ExportError(
            f"{target} exists already. Choose another --version, omit it for the next "
            f"free one, or replace it with --overwrite."
        )
    return target
