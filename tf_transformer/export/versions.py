"""Numbered versions of an export in a folder, each of which appears whole or not at all."""

import json
import pathlib
import shutil
import uuid

from tf_transformer.config import InputError

MANIFEST = "tf_transformer.json"


class ExportError(InputError):
    """An export that cannot be written or read."""


def versions(path):
    """The version numbers in a folder such as `saved_models/NAME`, ascending, of any format."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())


def write_version(write, path, version=None, overwrite=False):
    """Writes a version.

    Args:
        write: called with the `pathlib.Path` of an empty folder, which it fills.
        path: folder of the versions, such as `saved_models/de_en`.
        version: int greater than 0, or None for one more than the highest there.
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
