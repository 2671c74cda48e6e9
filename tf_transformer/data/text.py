"""Sentence pairs, in memory or read again and again."""

import abc
import dataclasses
import functools
import hashlib
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol, Self

from tf_transformer.data.lines import DataError, FilePath, is_blank, stream_aligned, stream_tsv

SAMPLE_PAIRS = 1000
RowsOfEpoch = Callable[[int], Any]  # from an epoch to an int array


class Observer(Protocol):
    """An object that takes note of the pairs of a text while they are read for the first time."""

    def add(self, pair: tuple[str, str]) -> None:
        """Take note of the next pair."""

    def merge(self, other: Self) -> None:
        """Take note of what another observer of the same kind noted of later pairs."""


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

    def parts(self) -> "list[SentencePairs]":
        """Return texts that have the pairs of this one in turn, to be read in several processes."""
        return [self]

    def rows_of_epoch(self, dropped: Collection[int], seed: int | None) -> RowsOfEpoch | None:
        """Return a function from an epoch to the numbers of its pairs; None for each pair once.

        The function counts only pairs whose numbers are not in `dropped`, in rising order.
        """
        return None


class StoredPairs(SentencePairs):
    """Pairs that are read again for each iteration, in the same order; blank ones are dropped."""

    _num_pairs = num_blank = 0
    _observers: Sequence[Observer] = ()

    @abc.abstractmethod
    def _stored(self) -> Iterator[tuple[str, ...]]:
        """Yield sources and targets, or targets alone, with blank ones."""

    def _require_pairs(self, where: str) -> None:
        """Raise a `DataError` if no pair is left of those that were read."""
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
            for observer in self._observers:
                observer.add(pair)
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

    def parts(self) -> list[SentencePairs]:
        return [dataclasses.replace(self, text=part) for part in self.text.parts()]

    def rows_of_epoch(self, dropped: Collection[int], seed: int | None) -> RowsOfEpoch | None:
        return self.text.rows_of_epoch(dropped, seed)


@dataclasses.dataclass(frozen=True)
class SampledText(ChangedText):
    """A random share of each part of a text, the same each time; `len` counts all pairs."""

    share: float

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for part in self.text.parts():
            draw = random.Random(0).random
            yield from (pair for pair in part if draw() < self.share)


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
