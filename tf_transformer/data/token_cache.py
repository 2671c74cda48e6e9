"""Ids on disk, so that a text is tokenized once and need not fit into memory."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tf_transformer.data.lines import DataError

_IDS, _OFFSETS, _ABOUT = "ids", "offsets", "about.json"


class CachedIds(NamedTuple):
    """What a folder of the cache holds.

    Attributes:
        ids: flat array of ids, mapped from the disk.
        offsets: int64 array, mapped too.
        num_too_long: int, pairs that were left out.
    """

    ids: np.ndarray
    offsets: np.ndarray
    num_too_long: int


class TokenCache:
    """The folder that keeps the ids of one text, cut by certain tokenizers.

    It appears whole or not at all: files are written under another name, handed to the disk, and
    their folder renamed. So any number of processes may write the same at once. What is there is
    used only if it was made of the very same, and its digests are right.

    Args:
        directory: where such folders are kept, for any number of texts.
        made_of: dict of plain values, everything the ids depend on.
        dtype: NumPy dtype of the ids.
    """

    def __init__(self, directory, made_of, dtype):
        self._directory = Path(directory)
        self._dtype = np.dtype(dtype)
        self._made_of = {**made_of, "dtype": self._dtype.str, "layout": 1}
        name = hashlib.sha256(json.dumps(self._made_of, sort_keys=True).encode()).hexdigest()
        self.path = self._directory / f"ids-{name[:16]}"

    def find(self):
        """The `CachedIds` that are there, or None where they are missing, torn or foreign."""
        try:
            about = json.loads((self.path / _ABOUT).read_bytes())
            if about["made_of"] != self._made_of or about["sha256"] != _digests(self.path):
                return None
            return self._mapped(self.path, about["num_too_long"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def fill(self, write):
        """Writes ids, and puts them into place.

        Args:
            write: `(ids, offsets) -> int`, writes the bytes of both to these binary files, and
                returns how many pairs it left out.

        Returns:
            `CachedIds`.

        Raises:
            DataError: the disk refuses them.
        """
        # Unique on all machines that may share the directory.
        temporary = self._directory / f".writing-{self.path.name}-{uuid.uuid4().hex}"
        try:
            temporary.mkdir(parents=True)
            with (
                (temporary / _IDS).open("wb") as ids,
                (temporary / _OFFSETS).open("wb") as offsets,
            ):
                num_too_long = write(ids, offsets)
            about = {
                "made_of": self._made_of,
                "num_too_long": num_too_long,
                "sha256": _digests(temporary),
            }
            (temporary / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            for path in (temporary / _IDS, temporary / _OFFSETS, temporary / _ABOUT, temporary):
                _sync(path)
            # Mapped before others can see it: a map outlives the name of its file.
            cached = self._mapped(temporary, num_too_long)
            self._put_in_place(temporary)
            _sync(self._directory)
        except OSError as error:
            raise DataError(
                f"{self._directory}: the ids of the training text cannot be kept there "
                f"({error.strerror}); make room, or give another --data-cache, or none"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return cached

    def _put_in_place(self, temporary):
        while True:
            try:
                temporary.rename(self.path)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            if self.find() is not None:  # of another process, which was faster
                return
            damaged = temporary.with_name(f"{temporary.name}-damaged")
            with contextlib.suppress(FileNotFoundError):  # another process took it away
                self.path.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)

    def _mapped(self, folder, num_too_long):
        return CachedIds(
            _map(folder / _IDS, self._dtype), _map(folder / _OFFSETS, np.int64), num_too_long
        )


def _map(path, dtype):
    if not path.stat().st_size:  # nothing cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _digests(folder):
    digests = {}
    for name in (_IDS, _OFFSETS):
        with (folder / name).open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
