"""Sentence pairs in text files and shards, which are left on disk."""

import copy
import functools
import glob
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tf_transformer.data.lines import DataError, FilePath, stream_aligned
from tf_transformer.data.processes import map_in_processes
from tf_transformer.data.text import Observer, StoredPairs
from tf_transformer.files import sha256

_BYTES_FOR_PROCESSES = 2**26  # which are read in a few seconds
_WILDCARDS = re.compile(r"(?:[*?]|\[!?\]?[^]/]*\])+")


class TextFiles(StoredPairs):
    """Aligned sentences in text files.

    The text may be larger than memory. The constructor reads and checks all files once, unless
    they are those of an earlier `summary`.

    Args:
        source: A plain or gzip file with one sentence per line, or a pattern (`train.*.en.gz`) for
            all matching files, sorted by name, with numbers in numerical order. None for text
            without translations, in which each line is a target with an empty source.
        target: The same for the translations: its line i in file k translates line i in source
            file k. The wildcards of both must match the same text, except for leading zeros.
        observers: Objects, empty at first, that take note of each pair which the constructor reads.
        known: A `summary` of the same text.
        read: Reads the pairs of a shard; the default is `stream_aligned`.
        processes: Number of processes that read the shards of large text; see `map_in_processes`.

    Attributes:
        shards: Tuples of the paths of files that belong together, one tuple for each shard.
        is_known: Whether nothing was read, because the files are those of `known`.

    Raises:
        DataError: If the files cannot be paired or read, or no pair is left.

    Example:
        >>> size = (folder / "train.de").write_text("Guten Morgen!")
        >>> size = (folder / "train.en").write_text("Good morning!")
        >>> list(tt.TextFiles(folder / "train.de", folder / "train.en"))
        [('Guten Morgen!', 'Good morning!')]
    """

    def __init__(
        self,
        source: FilePath | None,
        target: FilePath,
        observers: Sequence[Observer] = (),
        known: Mapping[str, Any] | None = None,
        read: Callable[..., Iterator[tuple[str, ...]]] | None = None,
        processes: int = 1,
    ) -> None:
        self._read = read or stream_aligned
        sides = [_matching_files(side) for side in (source, target) if side is not None]
        partners = itertools.zip_longest(sides[0], sides[-1], fillvalue=(None, "no file"))
        for (matched, path), (other_matched, other_path) in partners:
            if matched != other_matched:
                raise DataError(
                    f"{path} would be paired with {other_path}: what the wildcards of the two "
                    f"patterns match must be the same; name files and translations alike"
                )
        self.shards = list(zip(*([path for _, path in side] for side in sides), strict=True))
        paths = [path for shard in self.shards for path in shard]
        for path in paths:
            if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a terminal
                raise DataError(
                    f"{path}: can be read only once, but is read again, also to resume; give a "
                    f"regular file"
                )
        self.is_known = bool(known) and [*known["files"]] == [*map(str, paths)]
        if self.is_known:
            self._stamps = dict(zip(paths, map(_Stamp._make, known["files"].values()), strict=True))
            self.is_known = not any(map(self._is_changed, paths))
        if self.is_known:
            self._num_pairs, self.num_blank = known["num_pairs"], known["num_blank"]
            self.fingerprint = known["fingerprint"]
            return
        self._stamps = {path: _Stamp.of(path) for path in paths}
        is_large = sum(stamp.size for stamp in self._stamps.values()) >= _BYTES_FOR_PROCESSES
        read_part, fingerprints = functools.partial(_first_pass, copy.deepcopy(observers)), []
        for part, found in map_in_processes(read_part, self.parts(), processes if is_large else 1):
            self._num_pairs += len(part)
            self.num_blank += part.num_blank
            fingerprints.append(part.fingerprint)
            for observer, of_part in zip(observers, found, strict=True):
                observer.merge(of_part)
        self._require_pairs(" and ".join(str(side) for side in (source, target) if side))
        is_one = len(fingerprints) == 1
        self.fingerprint = fingerprints[0] if is_one else self.derived_fingerprint(*fingerprints)

    def parts(self) -> "list[TextFiles]":
        """Return a text for each shard, whose length is known only when it was read."""
        parts = [copy.copy(self) for _ in self.shards]
        for part, shard in zip(parts, self.shards, strict=True):
            part.shards, part._num_pairs, part.num_blank = [shard], 0, 0
            part._stamps = {path: self._stamps[path] for path in shard}  # of few, to be pickled
            vars(part).pop("fingerprint", None)
        return parts

    def summary(self) -> dict[str, Any]:
        """Return what a later process needs to know of the text, as values for JSON."""
        names = ("num_pairs", "num_blank", "fingerprint")
        counts = dict(zip(names, (len(self), self.num_blank, self.fingerprint), strict=True))
        return {"files": {str(path): stamp for path, stamp in self._stamps.items()}, **counts}

    def _is_changed(self, path: Path) -> bool:
        """Return whether a file has another content than when it was first read."""
        before, now = self._stamps[path], _Stamp.of(path, self._stamps[path])
        if before.sha256 == now.sha256:
            self._stamps[path] = now
        return before.sha256 != now.sha256

    def _stored(self) -> Iterator[tuple[str, ...]]:
        """Yield the lines; raise a `DataError` if a file has changed since it was first read."""
        for shard in self.shards:
            self._require_unchanged(shard)
            yield from self._read(*shard)
            self._require_unchanged(shard)

    def _require_unchanged(self, shard: Sequence[Path]) -> None:
        for path in filter(self._is_changed, shard):
            raise DataError(f"{path}: was changed while in use. Restore it, or start a new run.")


def _first_pass(
    observers: Sequence[Observer], part: TextFiles
) -> tuple[TextFiles, Sequence[Observer]]:
    """Return a part that was read, and copies of the observers, which took note of its pairs."""
    found = copy.deepcopy(observers)
    part._observers = found
    _ = part.fingerprint
    part._observers = ()
    return part, found


def _matching_files(pattern: FilePath) -> list[tuple[list[str | int], Path]]:
    """Return what the wildcards match, with numbers as int, and the file of each match; sorted."""
    # The name of a file may look like a pattern.
    if not any(sign in str(pattern) for sign in "*?[") or os.path.exists(pattern):
        return [([], Path(pattern))]
    plain = str(Path(pattern))
    expression = re.compile("([^/]*)".join(map(re.escape, _WILDCARDS.split(plain))))
    files = []
    for name in glob.glob(plain):
        parts = re.split(r"(\d+)", "/".join(expression.fullmatch(name).groups()))
        files.append(([int(p) if p.isdecimal() else p for p in parts], Path(name)))
    if not files:
        raise DataError(f"{pattern}: matches no file; check the pattern (from {Path.cwd()})")
    return sorted(files)


class _Stamp(NamedTuple):
    """The size, times and the content of a file; zeros if there is no file."""

    size: int
    modified: int
    changed: int  # also by who sets the time of modification
    sha256: str

    @classmethod
    def of(cls, path: Path, known: "_Stamp | None" = None) -> "_Stamp":
        """Return the stamp of a file; read the file unless size and time are as known."""
        if not path.is_file():
            return cls(0, 0, 0, "")
        found = path.stat()
        times = found.st_size, found.st_mtime_ns, found.st_ctime_ns
        return known if known and times == known[:3] else cls(*times, sha256(path))
