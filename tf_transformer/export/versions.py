"""Numbered versions of an export in a folder, each of which appears whole or not at all."""

import json
import pathlib
import shutil
import uuid

from tf_transformer.config import InputError

MANIFEST = "tf_transformer.json"
# What a version is, by the file that every version of its format has.
SAVED_MODEL, CTRANSLATE2 = "saved_model.pb", "model.bin"
_FORMATS = {SAVED_MODEL: "SavedModels", CTRANSLATE2: "CTranslate2 models"}


class ExportError(InputError):
    """An export that cannot be written or read."""


def versions(path):
    """The version numbers in a folder such as `saved_models/NAME`, ascending, of any format."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())


def write_version(write, file_format, path, version=None, overwrite=False):
    """Writes a version.

    Args:
        write: called with the `pathlib.Path` of an empty folder, which it fills.
        file_format: `SAVED_MODEL` or `CTRANSLATE2`. A server takes the highest version of a
            folder, so all in it are of one format.
        path: folder of the versions, such as `saved_models/de_en`.
        version: int greater than 0, or None for one more than the highest there.
        overwrite: bool, whether a version that exists may be replaced.

    Returns:
        `pathlib.Path` of the version.

    Raises:
        ExportError: the version exists and `overwrite` is False, it is no valid number, or the
            folder is a file or holds another format.
    """
    folder = pathlib.Path(path)
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
            f"{target} exists already. Choose another --version, leave it out for the next "
            f"free one, or replace it with --overwrite."
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename. TF Serving looks at numbers only.
    temporary = folder / f".writing-{version}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    try:
        write(temporary)
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


def write_manifest(folder, manifest):
    """Writes what made a version, a dict of plain values or None, as `tf_transformer.json`."""
    text = json.dumps(manifest or {}, indent=2, ensure_ascii=False, sort_keys=True)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
