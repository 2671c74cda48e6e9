"""The corpus of a run: loading it as configured, and holding out pairs for validation."""

import collections
import dataclasses
import functools
import hashlib
import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tf_transformer.config_fields import flag
from tf_transformer.data.lines import DataError, stream_tsv
from tf_transformer.data.mixture import Mixture, TaggedText
from tf_transformer.data.phrasebook import phrasebook
from tf_transformer.data.tasks import copy_task, reverse_task
from tf_transformer.data.text import SAMPLE_PAIRS, ChangedText, Corpus, ParallelText, SentencePairs
from tf_transformer.data.text_files import TextFiles
from tf_transformer.data.tfds import load_tfds, tfds_split
from tf_transformer.data.translation_files import read_pairs
from tf_transformer.machine import num_cores
from tf_transformer.run_tables import DataConfig

# Readers of a corpus' files by `DataConfig.corpus`.
_READERS = {
    "text": TextFiles,
    "monolingual": functools.partial(TextFiles, None),
    "tsv": functools.partial(TextFiles, None, read=stream_tsv),
    "file": functools.partial(TextFiles, None, read=read_pairs),
}
_BUILT_IN = {"phrasebook": phrasebook, "copy": copy_task, "reverse": reverse_task}
# The built-in corpora have few distinct subwords.
_VOCAB_SIZES = {"phrasebook": 2000, "copy": 280, "reverse": 280}
# For other corpora: the vocabulary size by the smallest number of pairs it is chosen for.
_VOCAB_SIZES_BY_PAIRS = {
    0: 400, 300: 1_000, 2_000: 2_000, 10_000: 4_000, 25_000: 8_000, 1_000_000: 16_000,
    5_000_000: 32_000,
}  # fmt: skip
_MOST_HELD_OUT = 1_000


def load_corpus(config: DataConfig, summary: Sequence[Mapping[str, Any]] = ()) -> Corpus:
    """Read or generate the sentences of a run; raise a `DataError` if that is impossible.

    Text files are read once, or not at all if they are those of a `summary` of an earlier process.

    Training text in files stays on disk; with `corpus="monolingual"` it has empty sources. Without
    validation files, `hold_out` takes pairs from each training text. The texts have the tags of
    their corpora, but not `source_tag`.
    """
    if config.corpus == "none":
        raise DataError("the run was imported, and has no text of its own")
    if config.corpus in _BUILT_IN:
        return _BUILT_IN[config.corpus]()
    if config.corpus.startswith("tfds:"):
        return load_tfds(config.corpus.removeprefix("tfds:"), config.tfds_dir, config.tfds_download)
    return _read_files(config, summary)


def _read_files(config: DataConfig, summaries: Sequence[Mapping[str, Any]]) -> Corpus:
    # Read the small text first, so that its errors are reported before the large text is read.
    read = _READERS[config.corpus]
    validations = [read(*paths) for paths in config.paths("validation")]
    repeated, sample = Repeated(validations), Sample()
    units, notes, texts, summary = "pairs" if config.has_sources else "sentences", [], [], []
    for paths, known in itertools.zip_longest(config.paths("train"), summaries):
        candidates = Candidates()
        observers = Sample(), repeated if config.has_validation_files else candidates
        text = read(*paths, observers=observers, known=known, processes=num_cores())
        sample.merge(observers[0])
        if known and text.fingerprint != known["fingerprint"]:
            raise DataError(
                f"{' and '.join(paths)}: was changed since the run began. Restore it, or start a "
                f"new run with another --run-dir."
            )
        summary.append(text.summary())
        if len(text.shards) > 1:
            where = " on each side" if len(paths) > 1 else ""
            first, last = (" with ".join(map(str, text.shards[index])) for index in (0, -1))
            notes.append(f"{len(text.shards)} files{where}: {first}, …, {last}.")
        if not config.has_validation_files:
            total = len(text)
            if text.is_known:
                validation = ParallelText(*map(tuple, known["held_out"]))
                sources = set(map(_normalized_source, validation))
                text = Remainder(text, sources, known["num_same_source"])
            else:
                text, validation = candidates.hold_out(text, " and ".join(paths))
            sides = {"held_out": [validation.sources, validation.targets]}
            summary[-1] |= {**sides, "num_same_source": text.num_same_source}
            validations.append(validation)
            options = map(flag, config.files("validation"))
            same = f" and dropped {text.num_same_source:,} with the same source"
            notes.append(
                f"Held out {len(validation):,} of {total:,} {units} for validation"
                f"{same if text.num_same_source else ''}; give {' and '.join(options)} to choose "
                f"them."
            )
        texts.append(text)
    if not config.has_validation_files and len(texts) > 1 and not summaries:
        # One corpus may have what another held out, which is known only now.
        repeated = Repeated(validations)
        for pair in itertools.chain.from_iterable(texts):
            repeated.add(pair)
    if number := len(repeated):
        total = sum(map(len, validations))
        notes.append(
            f"Validation {units} that are training {units} too: {number:,} of {total:,}; their "
            f"scores are too good."
        )
    validation, *others = _tagged(validations, config.validation_tags)
    if config.tag:
        texts = list(map(TaggedText, texts, config.tag))
    train = texts[0]
    if len(texts) > 1:
        train = Mixture(tuple(texts), config.weight)
        for paths, text, count in zip(config.paths("train"), texts, train.counts, strict=True):
            names = " and ".join(paths)
            notes.append(f"{names}: {len(text):,} {units}; an epoch has {count:,}.")
    extras = tuple(others), tuple(summary), tuple(sample.pairs)
    return Corpus(config.corpus, train, validation, None, tuple(notes), *extras)


def load_validation(config: DataConfig, summary: Sequence[Mapping[str, Any]] = ()) -> ParallelText:
    """Read or generate only the first validation text of a run, without using the network.

    With the `summary` of a run, text that it held out is not read again.
    """
    if summary and not config.has_validation_files:
        return _tagged([ParallelText(*map(tuple, summary[0]["held_out"]))], config.tag)[0]
    if config.has_validation_files:
        text = _READERS[config.corpus](*config.paths("validation")[0])
        return _tagged([text], config.validation_tag)[0]
    if config.corpus.startswith("tfds:"):
        return tfds_split(config.corpus.removeprefix("tfds:"), "validation", config.tfds_dir)
    return load_corpus(config, summary).validation


def _tagged(texts: Sequence[SentencePairs], tags: Sequence[str] | None) -> list[ParallelText]:
    """Return texts in memory, with their tags, which no translator adds."""
    tagged = map(TaggedText, texts, tags or [""] * len(texts))
    return [ParallelText(*zip(*text, strict=True), text.num_blank) for text in tagged]


def default_vocab_size(corpus: str, num_pairs: int) -> int:
    """Return a vocabulary size for a `DataConfig.corpus` with this number of pairs."""
    if corpus in _VOCAB_SIZES:
        return _VOCAB_SIZES[corpus]
    return max(size for fewest, size in _VOCAB_SIZES_BY_PAIRS.items() if num_pairs >= fewest)


# Validation pairs that are held out of the training text


@dataclasses.dataclass(frozen=True)
class Remainder(ChangedText):
    """The pairs of a text whose sources are not held out, read again for each iteration.

    Attributes:
        held_out: The sources that are held out, see `Candidates.hold_out`.
        num_same_source: Number of further pairs with held-out sources, which are dropped.
    """

    held_out: Collection[str]
    num_same_source: int

    def __len__(self) -> int:
        return len(self.text) - len(self.held_out) - self.num_same_source

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (pair for pair in self.text if _normalized_source(pair) not in self.held_out)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifier of the text and of what is held out."""
        return self.derived_fingerprint(self.text.fingerprint, *sorted(self.held_out))


class Candidates:
    """The pairs of a text that may be held out for validation, found while it is read once.

    The hash of a source decides, whatever its white space, so the same text gives the same parts.
    Only candidates are in memory.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[bytes, str, tuple[str, str]]] = []  # of the greatest hashes
        self._occurrences: collections.Counter[str] = collections.Counter()

    def add(self, pair: tuple[str, str]) -> None:
        """Take note of the next pair of the text."""
        source = _normalized_source(pair)
        digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
        self._count(digest, source, pair)

    def merge(self, other: "Candidates") -> None:
        """Take note of the pairs that another object took note of, as of later pairs."""
        for digest, source, pair in other._heap:
            self._count(digest, source, pair, other._occurrences[source])

    def _count(self, digest: bytes, source: str, pair: tuple[str, str], times: int = 1) -> None:
        is_full = len(self._heap) == 2 * _MOST_HELD_OUT
        if is_full and digest < self._heap[0][0]:  # most sources of a long text
            return
        self._occurrences[source] += times
        if self._occurrences[source] == times:
            heapq.heappush(self._heap, (digest, source, pair))
            if is_full:
                del self._occurrences[heapq.heappop(self._heap)[1]]

    def hold_out(self, text: SentencePairs, where: str) -> tuple[Remainder, ParallelText]:
        """Split the text for training and validation, when all of its pairs were added.

        No source is in both parts: validation has the first pair of a held-out source, and the
        others are dropped. Text without sources is split by sentences. Rare sources are preferred:
        many subtitles are `"Yes."`, and the model should learn that. At least half of the pairs
        stay for training.

        Raises:
            DataError: If no pair can be held out. The message names `where`, such as the files.
        """
        count, occurrences = num_held_out(len(text)), self._occurrences
        candidates = heapq.nlargest(2 * count, self._heap)
        held_out: dict[str, tuple[str, str]] = {}
        num_removed = 0
        for _, source, pair in sorted(candidates, key=lambda candidate: occurrences[candidate[1]]):
            if len(held_out) < count and num_removed + occurrences[source] <= len(text) // 2:
                held_out[source] = pair
                num_removed += occurrences[source]
        if not held_out:
            raise DataError(
                f"{where}: no line of {len(text)} is rare enough to be held out for validation; "
                f"give more text, or files for validation"
            )
        validation = ParallelText(*zip(*held_out.values(), strict=True))
        return Remainder(text, set(held_out), num_removed - len(held_out)), validation


def num_held_out(num_pairs: int) -> int:
    """Return how many pairs of a text are held out: a twentieth, but at most 1,000.

    A small text gives 50 pairs, or a tenth if that is less: BLEU of fewer sentences says little.
    """
    return max(1, min(max(num_pairs // 20, min(50, num_pairs // 10)), _MOST_HELD_OUT))


class Sample:
    """Every n-th pair of each part of a text, and n a power of two that makes 1,000 to 2,000."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self._step, self._number = 1, 0

    def add(self, pair: tuple[str, str]) -> None:
        """Take note of the next pair."""
        if self._number % self._step == 0:
            self.pairs.append(pair)
            self._shorten(self._step)
        self._number += 1

    def merge(self, other: "Sample") -> None:
        """Add the pairs of another sample, as of later pairs."""
        self._shorten(other._step)
        self.pairs += other.pairs[:: self._step // other._step]
        self._shorten(self._step)

    def _shorten(self, step: int) -> None:
        while self._step < step or len(self.pairs) >= 2 * SAMPLE_PAIRS:
            del self.pairs[1::2]
            self._step *= 2


class Repeated:
    """The validation pairs that are also training pairs, ignoring white space."""

    def __init__(self, validations: Sequence[SentencePairs]) -> None:
        pairs = itertools.chain.from_iterable(validations)
        self._counts = collections.Counter(map(_words, pairs))
        self._trained: set[tuple[str, ...]] = set()

    def __len__(self) -> int:
        return sum(self._counts[words] for words in self._trained)

    def add(self, pair: tuple[str, str]) -> None:
        """Take note of a training pair."""
        if self._counts and (words := _words(pair)) in self._counts:
            self._trained.add(words)

    def merge(self, other: "Repeated") -> None:
        """Take note of the training pairs that another object took note of."""
        self._trained |= other._trained


def _words(pair: tuple[str, str]) -> tuple[str, ...]:
    return tuple(" ".join(side.split()) for side in pair)


def _normalized_source(pair: tuple[str, str]) -> str:
    """Return the source, or the target if it is empty, with white space as a tokenizer reads it."""
    return " ".join((pair[0] or pair[1]).split())
