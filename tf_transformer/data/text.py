"""Text files to sentence pairs: plain, gzip, TSV and shards, in memory or left on disk."""

import codecs
import dataclasses
import functools
import glob
import gzip
import hashlib
import itertools
import os
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tf_transformer.errors import InputError

FilePath = str | os.PathLike[str]
_GZIP_MAGIC = b"\x1f\x8b"
_WILDCARDS = re.compile(r"(?:[*?]|\[!?\]?[^]/]*\])+")
# Unicode's categories of white space, controls and marks such as a zero width space.
_INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")


class DataError(InputError):
    """Data that cannot be used."""


class Fingerprint(NamedTuple):
    """Identifies a text by its content; as str `"29,000 pairs, SHA-256 5f3c0a…"`.

    Attributes:
        num_pairs: Number of sentence pairs.
        sha256: Start of the digest of all pairs, in order.
    """

    num_pairs: int
    sha256: str

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "Fingerprint":
        """Reads all pairs once, without keeping them."""
        digest, num_pairs = hashlib.sha256(), 0
        for source, target in pairs:
            # The lengths separate the fields, whatever characters these have.
            digest.update(f"{len(source)} {len(target)} {source}{target}".encode())
            num_pairs += 1
        return cls(num_pairs, digest.hexdigest()[:16])

    def __str__(self) -> str:
        """Returns both in a line, for messages and run metadata."""
        return f"{self.num_pairs:,} pairs, SHA-256 {self.sha256}"


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Aligned sentences: `targets[i]` is the translation of `sources[i]`.

    Attributes:
        sources: Sentences of the source language.
        targets: Sentences of the target language.
        num_blank: Number of pairs that the reader dropped because a side was blank.

    Raises:
        TypeError: If a side is one str.
        ValueError: If the sides are not equally long.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    num_blank: int = 0

    def __post_init__(self) -> None:
        """Checks that the sides are aligned sentences."""
        if isinstance(self.sources, str) or isinstance(self.targets, str):
            raise TypeError("sources and targets must be tuples of str, not a str; give (text,)")
        if len(self.sources) != len(self.targets):
            raise ValueError(
                f"received {len(self.sources)} sources and {len(self.targets)} targets; "
                f"give one target for each source"
            )

    def __len__(self) -> int:
        """Returns the number of pairs."""
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields the pairs, (source, target)."""
        return zip(self.sources, self.targets, strict=True)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        """Identifies these sentences by their content."""
        return Fingerprint.of(self)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Parallel text, split for training, validation and test.

    Attributes:
        name: Name of the corpus in messages.
        train: Training pairs: `ParallelText`, `TextFiles` that stay on disk, or the `Remainder` of
            either.
        validation: Pairs by which the best checkpoint is chosen.
        test: Pairs for the final evaluation, if there are any.
        notes: What a user should know about the parts, one line each.
    """

    name: str
    train: Iterable[tuple[str, str]]
    validation: ParallelText
    test: ParallelText | None = None
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What is counted: a `"pair"`, or a `"sentence"` where all sources are empty."""
        return "pair" if any(self.validation.sources) else "sentence"


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
        DataError: If the files cannot be paired or read, or no pair is left.
    """

    def __init__(self, source: FilePath | None, target: FilePath) -> None:
        sides = [_matching_files(side) for side in (source, target) if side is not None]
        if len(sides[0]) != len(sides[-1]):
            raise DataError(
                f"{source} matches {len(sides[0])} but {target} matches {len(sides[1])} files; "
                f"give each file of sentences its file of translations"
            )
        for (matched, path), (other_matched, other_path) in zip(sides[0], sides[-1], strict=True):
            if matched and other_matched and matched != other_matched:
                raise DataError(
                    f"{path} would be paired with {other_path}: what the wildcards of the two "
                    f"patterns match must be the same; name files and translations alike"
                )
        self.shards = list(zip(*([path for _, path in side] for side in sides), strict=True))
        self._has_sources = source is not None
        self._stamps = [[_stamp(path) for path in shard] for shard in self.shards]
        self.fingerprint = Fingerprint.of(self)
        if not self.fingerprint.num_pairs:
            raise no_pair_left(" and ".join(str(s) for s in (source, target) if s), self.num_blank)

    def __len__(self) -> int:
        """Returns the number of pairs."""
        return self.fingerprint.num_pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields the pairs, (source, target), in the order of the files.

        Raises:
            DataError: If a file has changed since it was first read.
        """
        num_blank = 0
        for pair in self._lines():
            if is_blank(pair[1]) or (self._has_sources and is_blank(pair[0])):
                num_blank += 1
            else:
                yield pair
        self.num_blank = num_blank  # the same each time

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


def read_parallel(source_path: FilePath, target_path: FilePath) -> ParallelText:
    """Reads two files in which line i of one is the translation of line i of the other.

    Returns:
        The pairs without blank sides; `num_blank` counts the dropped ones.

    Raises:
        DataError: If a file cannot be read, the files differ in length, or no pair is left.
    """
    return without_blanks(
        stream_aligned(source_path, target_path), f"{source_path} and {target_path}"
    )


def read_tsv(path: FilePath) -> ParallelText:
    """Reads a file of lines `source TAB target`. Quotes and backslashes are ordinary characters.

    Returns:
        The pairs without blank sides; `num_blank` counts the dropped ones, blank lines too.

    Raises:
        DataError: If the file cannot be read, a line has not exactly one tab, or no pair is left.
    """
    pairs = []
    for number, line in enumerate(stream_lines(path), start=1):
        columns = ("", "") if is_blank(line) else tuple(line.split("\t"))
        if len(columns) != 2:
            raise DataError(
                f"{path}, line {number}: {len(columns) - 1} tabs where 1 was expected; "
                f"write source, one tab, target"
            )
        pairs.append(columns)
    return without_blanks(pairs, str(path))


def read_lines(path: FilePath) -> list[str]:
    """Reads all lines of a file, see `stream_lines`."""
    return list(stream_lines(path))


def stream_lines(path: FilePath) -> Iterator[str]:
    """Yields the lines of a text file, plain or gzip, see `decode_lines`.

    Raises:
        DataError: If the file cannot be read, is empty, or is not valid gzip or UTF-8.
    """
    line = None
    try:
        with open(path, "rb") as file:
            # The first bytes say whether it is gzip, not the name.
            is_gzip = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            for line in decode_lines(gzip.open(file) if is_gzip else file, str(path)):
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: damaged or incomplete gzip ({error}); copy or download it again"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror.lower()}; check the path (from {Path.cwd()})"
        ) from error
    if line is None:
        raise DataError(f"{path}: the file is empty; give a file with one sentence on each line")


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Decodes the lines of a binary file, without their ends and a byte order mark.

    Only `"\n"` and `"\r\n"` end a line. `str.splitlines` would also split at U+2028, `"\x0b"` or
    `"\x85"`, which occur inside real sentences, and so shift one language against the other.

    Args:
        lines: A file that is open for reading bytes.
        name: Its name in errors.

    Raises:
        DataError: If a line is not UTF-8, or has a NUL character.
    """
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            # No text has NULs, and UTF-16 has many.
            text = line.replace(b"\0", b"\xff").decode()
        except UnicodeDecodeError:
            raise DataError(
                f"{name}, line {number}: not valid UTF-8; convert the text to UTF-8 (for example "
                f"with iconv), or unpack it"
            ) from None
        yield text.removesuffix("\n").removesuffix("\r")


def stream_aligned(source_path: FilePath, target_path: FilePath) -> Iterator[tuple[str, str]]:
    """Yields the lines of two files in pairs: line i of one translates line i of the other.

    Raises:
        DataError: If a file cannot be read, or one ends before the other.
    """
    sources, targets = stream_lines(source_path), stream_lines(target_path)
    for number, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
        if source is None or target is None:
            # Both counts are more useful than the line where the shorter file ended.
            num_sources = number + (source is not None) + sum(1 for _ in sources)
            num_targets = number + (target is not None) + sum(1 for _ in targets)
            raise DataError(
                f"{source_path} has {num_sources} but {target_path} has {num_targets} lines; "
                f"line i of one must be the translation of line i of the other"
            )
        yield source, target


def is_blank(text: str) -> bool:
    """Returns whether no character of a text is visible, such as U+200B or U+FEFF."""
    return all(unicodedata.category(character) in _INVISIBLE for character in text)


def without_blanks(pairs: Iterable[tuple[str, str]], where: str) -> ParallelText:
    """Drops the pairs with a blank side; raises a `DataError` if none is left."""
    pairs = list(pairs)
    kept = [pair for pair in pairs if not any(map(is_blank, pair))]
    if not kept:
        raise no_pair_left(where, len(pairs))
    return ParallelText(*zip(*kept, strict=True), len(pairs) - len(kept))


def no_pair_left(where: str, num_blank: int) -> DataError:
    """Returns the error for a text without a usable line."""
    return DataError(
        f"{where}: no pair is left, {num_blank} had a blank side; give at least one line of text"
    )


def _matching_files(pattern: FilePath) -> list[tuple[list[str | int], Path]]:
    """Returns what the wildcards of a pattern match, numbers as such, and the files; sorted."""
    # A file may have a name that looks like a pattern.
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


def _stamp(path: Path) -> tuple[int, int] | None:
    """Returns size and modification time of a file; None if it is missing."""
    if not path.exists():
        return None
    if not (path.is_file() or path.is_dir()):
        raise DataError(
            f"{path}: can be read only once, and training text is read several times; write it to "
            f"a file (gzip will do)"
        )
    status = path.stat()
    return status.st_size, status.st_mtime_ns
