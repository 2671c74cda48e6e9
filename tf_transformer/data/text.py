"""Sentence pairs from text files: plain, gzip, TSV and shards, in memory or left on disk."""

import abc
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

from tf_transformer.errors import InputError
from tf_transformer.files import naming, sha256

FilePath = str | os.PathLike[str]
RowsOfEpoch = Callable[[int], Any]  # from an epoch to an int array
SAMPLE_PAIRS = 1000
_GZIP_MAGIC = b"\x1f\x8b"
_WILDCARDS = re.compile(r"(?:[*?]|\[!?\]?[^]/]*\])+")
# Unicode categories of white space, controls and format characters (a zero width space).
_INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")


class DataError(InputError):
    """Data that cannot be used."""


class SentencePairs(Sized, Iterable[tuple[str, str]]):
    """Pairs of sentences, (source, target), that can be read again and again.

    Attributes:
        num_blank: Number of pairs that the reader dropped because a side was blank.
    """

    num_blank: int

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifier of the pairs' content, such as `"29,000 pairs, SHA-256 5f3c0a…"`."""
        digest, num_pairs = hashlib.sha256(), 0
        for source, target in self:
            # The lengths separate the fields, whatever characters the fields contain.
            digest.update(f"{len(source)} {len(target)} {source}{target}".encode())
            num_pairs += 1
        return f"{num_pairs:,} pairs, SHA-256 {digest.hexdigest()[:16]}"

    def derived_fingerprint(self, *parts: str) -> str:
        """Return an identifier that is made of those of the parts, without reading the pairs."""
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return f"{len(self):,} pairs, SHA-256 {digest[:16]}"

    def rows_of_epoch(self, dropped: Collection[int], seed: int | None) -> RowsOfEpoch | None:
        """Return a function from an epoch to the numbers of its pairs; None for each pair once.

        The function counts only pairs whose numbers are not in `dropped`, in rising order.
        """
        return None


class StoredPairs(SentencePairs):
    """Pairs that are read again for each iteration, in the same order; blank ones are dropped."""

    _num_pairs = num_blank = 0
    _observers: Sequence[Callable[[tuple[str, str]], None]] = ()

    @abc.abstractmethod
    def _stored(self) -> Iterator[tuple[str, ...]]:
        """Yield sources and targets, or targets alone, with blank ones."""

    def _read_all(self, where: str) -> None:
        """Count the pairs; raise a `DataError` if none is left."""
        _ = self.fingerprint
        if not self._num_pairs:
            raise no_pair_left(where, self.num_blank)

    def __len__(self) -> int:
        return self._num_pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        num_pairs = num_blank = 0
        for sides in self._stored():
            if any(map(is_blank, sides)):
                num_blank += 1
                continue
            pair = sides if len(sides) == 2 else ("", *sides)
            for observe in self._observers:
                observe(pair)
            num_pairs += 1
            yield pair
        self._num_pairs, self.num_blank = num_pairs, num_blank  # the same each time


@dataclasses.dataclass(frozen=True)
class ParallelText(SentencePairs):
    """Aligned sentences in memory: `targets[i]` is the translation of `sources[i]`.

    Raises:
        TypeError: If a side is one str, whose characters would be taken for sentences.
        ValueError: If the sides have different lengths.

    Example:
        >>> text = tt.ParallelText(("Guten Morgen!", "Danke!"), ("Good morning!", "Thanks!"))
        >>> len(text), next(iter(text))
        (2, ('Guten Morgen!', 'Good morning!'))
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    num_blank: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.sources, str) or isinstance(self.targets, str):
            raise TypeError("sources and targets must be tuples of str, not a str; give (text,)")
        if len(self.sources) != len(self.targets):
            raise ValueError(
                f"received {len(self.sources)} sources and {len(self.targets)} targets; "
                f"give one target for each source"
            )

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.sources, self.targets, strict=True)


@dataclasses.dataclass(frozen=True)
class ChangedText(SentencePairs):
    """The pairs of a text, each changed in some way; a subclass says how."""

    text: SentencePairs

    @property
    def num_blank(self) -> int:
        """Number of pairs that the text dropped because a side is blank."""
        return self.text.num_blank

    def __len__(self) -> int:
        return len(self.text)

    def rows_of_epoch(self, dropped: Collection[int], seed: int | None) -> RowsOfEpoch | None:
        return self.text.rows_of_epoch(dropped, seed)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Parallel text, split for training, validation and test.

    Attributes:
        name: Name of the corpus in messages.
        train: Training pairs, in memory or left on disk.
        validation: Pairs by which the best checkpoint is chosen.
        test: Pairs for the final evaluation; None if there are none.
        notes: Lines that tell a user what is special about the parts.
        more_validation: Further sets of validation pairs, which choose nothing.
        summary: The `TextFiles.summary` of each training text on disk and the pairs that it held
            out, for `load_corpus` in a later process.
        read_sample: See `sample`; empty if the training text was not read.

    Example:
        >>> text = tt.ParallelText(("Guten Morgen!",), ("Good morning!",))
        >>> tt.Corpus("greetings", train=text, validation=text).unit
        'pair'
    """

    name: str
    train: SentencePairs
    validation: ParallelText
    test: ParallelText | None = None
    notes: tuple[str, ...] = ()
    more_validation: tuple[ParallelText, ...] = ()
    summary: tuple[dict[str, Any], ...] = ()
    read_sample: tuple[tuple[str, str], ...] = ()

    @property
    def sample(self) -> Sequence[tuple[str, str]]:
        """Some 1,000 pairs, spread over the whole training text, which may be sorted."""
        step = -(-len(self.train) // SAMPLE_PAIRS)
        return self.read_sample or list(itertools.islice(self.train, 0, None, step))

    @property
    def validations(self) -> tuple[ParallelText, ...]:
        """All sets of validation pairs, first the one by which checkpoints are chosen."""
        return self.validation, *self.more_validation

    @property
    def unit(self) -> str:
        """Name of one item in messages: `"pair"`, or `"sentence"` if all sources are empty."""
        return "pair" if any(self.validation.sources) else "sentence"


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
        observers: Functions that are called with each pair while the constructor reads.
        known: A `summary` of the same text.
        read: Reads the pairs of a shard; the default is `stream_aligned`.

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
        observers: Sequence[Callable[[tuple[str, str]], None]] = (),
        known: Mapping[str, Any] | None = None,
        read: Callable[..., Iterator[tuple[str, ...]]] | None = None,
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
        self._stamps = {}
        self.is_known = bool(known) and [*known["files"]] == [*map(str, paths)]
        if self.is_known:
            self._stamps = dict(zip(paths, map(_Stamp._make, known["files"].values()), strict=True))
            self.is_known = not any(map(self._is_changed, paths))
        if self.is_known:
            self._num_pairs, self.num_blank = known["num_pairs"], known["num_blank"]
            self.fingerprint = known["fingerprint"]
            return
        self._stamps = {path: _Stamp.of(path) for path in paths}
        self._observers = observers
        self._read_all(" and ".join(str(s) for s in (source, target) if s))
        self._observers = ()

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


def read_parallel(source_path: FilePath, target_path: FilePath) -> ParallelText:
    r"""Read two aligned files, see `stream_aligned`, and drop the pairs with a blank side.

    Example:
        >>> size = (folder / "dev.de").write_text("Guten Morgen!\n\n")
        >>> size = (folder / "dev.en").write_text("Good morning!\n\n")
        >>> tt.read_parallel(folder / "dev.de", folder / "dev.en")
        ParallelText(sources=('Guten Morgen!',), targets=('Good morning!',), num_blank=1)
    """
    where = f"{source_path} and {target_path}"
    return without_blanks(stream_aligned(source_path, target_path), where)


def read_tsv(path: FilePath) -> ParallelText:
    """Read a file of lines, see `stream_tsv`, and drop the pairs with a blank side.

    Example:
        >>> size = (folder / "dev.tsv").write_text("Danke!" + chr(9) + "Thanks!")
        >>> tt.read_tsv(folder / "dev.tsv").targets
        ('Thanks!',)
    """
    return without_blanks(stream_tsv(path), str(path))


def stream_tsv(path: FilePath) -> Iterator[tuple[str, str]]:
    """Yield the columns of lines `source TAB target`; two empty ones for a blank line.

    Quotes and backslashes are ordinary characters.

    Raises:
        DataError: If the file cannot be read, or a line has no tab or several.
    """
    for number, line in enumerate(stream_lines(path), start=1):
        columns = ("", "") if is_blank(line) else tuple(line.split("\t"))
        if len(columns) != 2:
            raise DataError(
                f"{path}, line {number}: {len(columns) - 1} tabs where 1 was expected; "
                f"write source, one tab, target"
            )
        yield columns


def read_lines(path: FilePath) -> list[str]:
    """Return all lines of a file as a list; see `stream_lines`."""
    return list(stream_lines(path))


def stream_lines(path: FilePath) -> Iterator[str]:
    """Yield the lines of a plain or gzip text file; see `decode_lines`.

    Raises:
        DataError: If the file cannot be read, is empty, or is not valid gzip or UTF-8.
    """
    line = None
    try:
        with open(path, "rb") as file:
            # The first bytes, not the name, show whether the file is gzip.
            is_gzip = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            for line in decode_lines(gzip.open(file) if is_gzip else file, str(path)):
                yield line
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or f"damaged or incomplete gzip ({error})"
        raise DataError(f"{path}: {reason.lower()}; check the file (from {Path.cwd()})") from error
    if line is None:
        raise DataError(f"{path}: the file is empty; give a file with one sentence on each line")


def decode_lines(lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
    r"""Decode the lines of a binary file, and remove line ends and byte order marks.

    Only `"\n"` and `"\r\n"` end a line. `str.splitlines` would also split at U+2028, `"\x0b"` or
    `"\x85"`, which occur inside real sentences, and so would misalign the two languages.

    Args:
        lines: A file that is open for reading bytes.
        name: Name of the file for errors, which also give the number of a line that is not UTF-8.
        first: The number of the first line.
    """
    with naming(name):
        for number, line in enumerate(lines, start=first):
            try:
                # Make NULs invalid: no text has them, and UTF-16 that is read as UTF-8 has many.
                text = line.replace(b"\0", b"\xff").decode()
            except UnicodeDecodeError:
                is_utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                fault = "is UTF-16" if is_utf16 else "not valid UTF-8, or has a NUL"
                raise DataError(
                    f"{name}, line {number}: {fault}; convert the text (iconv), or unpack it"
                ) from None
            # Files that were joined, also by gzip, have byte order marks at any line.
            yield text.lstrip("\ufeff").removesuffix("\n").removesuffix("\r")


def stream_aligned(*paths: FilePath) -> Iterator[tuple[str, ...]]:
    """Yield line i of each file as a tuple: a source and its translation, or one line alone.

    Raises:
        DataError: If a file cannot be read, or one ends before the other.
    """
    files = [stream_lines(path) for path in paths]
    for number, lines in enumerate(itertools.zip_longest(*files)):
        if None in lines:
            # Both counts are more useful than the line where the shorter file ended.
            counts = [
                number + (line is not None) + sum(1 for _ in file)
                for line, file in zip(lines, files, strict=True)
            ]
            raise DataError(
                f"{paths[0]} has {counts[0]} but {paths[1]} has {counts[1]} lines; "
                f"line i of one must be the translation of line i of the other"
            )
        yield lines


def is_blank(text: str) -> bool:
    """Return whether a text has no visible character; U+200B and U+FEFF are not visible."""
    return all(unicodedata.category(character) in _INVISIBLE for character in text)


def without_blanks(pairs: Iterable[tuple[str, str]], where: str) -> ParallelText:
    """Drop the pairs with a blank side; raise a `DataError` if none is left."""
    pairs = list(pairs)
    kept = [pair for pair in pairs if not any(map(is_blank, pair))]
    if not kept:
        raise no_pair_left(where, len(pairs))
    return ParallelText(*zip(*kept, strict=True), len(pairs) - len(kept))


def no_pair_left(where: str, num_blank: int) -> DataError:
    """Return the error for a text without a usable line."""
    return DataError(
        f"{where}: no pair is left, {num_blank} had a blank side; give at least one line of text"
    )


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
