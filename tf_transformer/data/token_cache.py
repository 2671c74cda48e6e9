"""Token ids on disk, so that a text is tokenized once and need not fit into memory."""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tf_transformer.data.lines import DataError
from tf_transformer.files import atomic_folder, sha256

_IDS, _OFFSETS, _MANIFEST = "ids", "offsets", "manifest.json"


class CachedIds(NamedTuple):
    """What a folder of the cache holds.

    Attributes:
        ids: Flat array of token ids, mapped from the disk.
        offsets: int64 array, mapped too.
        num_too_long: How many pairs were dropped.
    """

    ids: np.ndarray
    offsets: np.ndarray
    num_too_long: int


class TokenCache:
    """The folder with the token ids of one text under certain tokenizers.

    It is written atomically, by any number of processes at once, and used only if it has the same
    key and its digests are right.

    Args:
        directory: Where such folders are kept, for any number of texts.
        key: Plain values, everything that the ids depend on.
        dtype: NumPy dtype of the ids.
    """

    def __init__(
        self, directory: str | os.PathLike[str], key: Mapping[str, Any], dtype: Any
    ) -> None:
        self._directory = Path(directory)
        self._dtype = np.dtype(dtype)
        self._key = {**key, "dtype": self._dtype.str, "layout": 1}
        name = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = self._directory / f"ids-{name[:16]}"

    def find(self) -> CachedIds | None:
        """The ids that are there; None where they are missing, damaged or have another key."""
        try:
            manifest = json.loads((self.path / _MANIFEST).read_bytes())
            if manifest["key"] != self._key or manifest["sha256"] != _digests(self.path):
                return None
            return self._mapped(self.path, manifest["num_too_long"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def fill(self, write: Callable[[BinaryIO, BinaryIO], int]) -> CachedIds:
        """Writes ids.

        Args:
            write: Writes the bytes of ids and offsets to these files, and returns how many pairs
                it dropped.

        Raises:
            DataError: The disk refuses them.
        """
        is_damaged = self.path.exists()
        try:
            with atomic_folder(self.path, overwrite=is_damaged) as folder:
                with (folder / _IDS).open("wb") as ids, (folder / _OFFSETS).open("wb") as offsets:
                    num_too_long = write(ids, offsets)
                manifest = {
                    "key": self._key,
                    "num_too_long": num_too_long,
                    "sha256": _digests(folder),
                }
                text = json.dumps(manifest, indent=2) + "\n"
                (folder / _MANIFEST).write_text(text, encoding="utf-8")
                # Mapped before others can replace it: a map outlives the name of its file.
                return self._mapped(folder, num_too_long)
        except OSError as error:
            # Another process, which was faster, has written the same.
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and (found := self.find()):
                return found
            raise DataError(
                f"{self._directory}: the ids of the training text cannot be kept there "
                f"({error.strerror}); free some space, or give another --data-cache, or none"
            ) from error

    def _mapped(self, folder: Path, num_too_long: int) -> CachedIds:
        return CachedIds(
            _map(folder / _IDS, self._dtype), _map(folder / _OFFSETS, np.int64), num_too_long
        )


def _map(path: Path, dtype: Any) -> np.ndarray:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _digests(folder: Path) -> dict[str, str]:
    return {name: sha256(folder / name) for name in (_IDS, _OFFSETS)}
