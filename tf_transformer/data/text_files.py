"""Parallel text, or text alone, that stays in its files."""

import glob
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tf_transformer.data.lines import DataError, counted, stream_aligned, stream_lines
from tf_transformer.data.parallel import Fingerprint, has_text, is_blank, no_pair_left

_WILDCARDS = re.compile(r"(?:[*?]|\[!?\]?[^]/]*\])+")


class TextFiles:
    """Aligned sentences in text files, read again for each iteration.

    Few sentences are in memory at a time, so the text may be larger than memory. The constructor
    reads and checks all files once.

    Args:
        source: A file, plain or gzip, one sentence a line; or a pattern such as `train.*.en.gz`
            for all files that match, sorted by name, numbers by their size. None for text without
            translations, in which each line is a target and its source is empty.
        target: The same for the translations: line i of file k translates line i of file k. What
            the wildcards match must be the same on both sides, but for zeros before a number.

    Attributes:
        shards: The files that belong together.
        num_blank: Number of pairs dropped because a side is blank; of text alone, blank lines.
        fingerprint: Identifies these sentences, however they are split into files.

    Raises:
        DataError: If a pattern matches nothing, the sides have different numbers of files, files
            of other names, or files of different numbers of lines, one cannot be read (or only
            once, such as a pipe), or no pair is left.
    """

    def __init__(
        self, source: str | os.PathLike[str] | None, target: str | os.PathLike[str]
    ) -> None:
        """Reads all files once."""
        sides = [_files(side) for side in (source, target) if side is not None]
        if len(sides[0]) != len(sides[-1]):
            raise DataError(
                f"{source} matches {counted(len(sides[0]), 'file')} but {target} matches "
                f"{len(sides[1])}; give each file of sentences its file of translations"
            )
        for one, other in zip(sides[0], sides[-1], strict=True):
            if one.wildcards and other.wildcards and one.wildcards != other.wildcards:
                raise DataError(
                    f"{one.path} would be paired with {other.path}: what the wildcards of the two "
                    "patterns match must be the same; name files and translations alike"
                )
        self.shards = list(zip(*([file.path for file in side] for side in sides), strict=True))
        self._has_sources = source is not None
        self._stamps = [[_stamp(path) for path in shard] for shard in self.shards]
        self.num_blank = 0
        self.fingerprint = Fingerprint.of(self._count_blanks())
        if not self.fingerprint.num_pairs and source is None:
            raise DataError(f"{target}: every line is blank; give at least one with text")
        if not self.fingerprint.num_pairs:
            raise no_pair_left(f"{source} and {target}", self.num_blank)

    def __len__(self) -> int:
        """Returns the number of pairs."""
        return self.fingerprint.num_pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields the pairs, (source, target), in the order of the files.

        Raises:
            DataError: If a file has changed since it was first read.
        """
        return filter(self._is_kept, self._lines())

    def _count_blanks(self) -> Iterator[tuple[str, str]]:
        """Yields the pairs and counts the dropped ones."""
        for pair in self._lines():
            if self._is_kept(pair):
                yield pair
            else:
                self.num_blank += 1

    def _is_kept(self, pair: tuple[str, str]) -> bool:
        return has_text(pair) if self._has_sources else not is_blank(pair[1])

    def _lines(self) -> Iterator[tuple[str, str]]:
        for shard, stamps in zip(self.shards, self._stamps, strict=True):
            if self._has_sources:
                yield from stream_aligned(*shard)
            else:
                yield from zip(itertools.repeat(""), stream_lines(*shard))
            for path, stamp in zip(shard, stamps, strict=True):
                if _stamp(path) != stamp:
                    raise DataError(
                        f"{path}: was changed while it was in use; start again when it is complete"
                    )


class _File(NamedTuple):
    """A file of a pattern, and what the wildcards match, with numbers as such."""

    wildcards: list[list[str | int]]
    path: Path


def _files(pattern: str | os.PathLike[str]) -> list[_File]:
    """Returns the files that match a path or a pattern, sorted."""
    # A file may have a name that looks like a pattern.
    if not any(sign in str(pattern) for sign in "*?[") or os.path.exists(pattern):
        return [_File([], Path(pattern))]
    plain = str(Path(pattern))
    expression = "([^/]*)".join(map(re.escape, _WILDCARDS.split(plain)))
    files = []
    for name in glob.glob(plain):
        parts = [re.split(r"(\d+)", group) for group in re.fullmatch(expression, name).groups()]
        numbered = [[int(part) if part.isdecimal() else part for part in ps] for ps in parts]
        files.append(_File(numbered, Path(name)))
    if not files:
        raise DataError(f"{pattern}: matches no file; check the pattern (from {Path.cwd()})")
    return sorted(files)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Returns size and modification time of a file; None if there is none to read."""
    if not path.exists() or path.is_dir():
        return None
    if not path.is_file():
        raise DataError(
            f"{path}: can be read only once, and training text is read several times; write it to "
            "a file (gzip will do)"
        )
    status = path.stat()
    return status.st_size, status.st_mtime_ns
