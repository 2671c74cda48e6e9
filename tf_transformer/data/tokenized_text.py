"""Sentence pairs as token ids, in memory or in a cache on disk, also as they change by epoch."""

import dataclasses
import functools
import hashlib
import itertools
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.data.lines import DataError, FilePath
from tf_transformer.data.mark_practice import practise_marks
from tf_transformer.data.marks import Marks
from tf_transformer.data.noise import add_noise
from tf_transformer.data.processes import map_in_processes
from tf_transformer.data.text import SentencePairs
from tf_transformer.data.word_links import WordLinks
from tf_transformer.files import atomic_folder
from tf_transformer.tokenizers import GraphTokenizer

_CHUNK_PAIRS = 10_000

_Pairs = Iterable[tuple[Sequence[int], Sequence[int]]]


class TokenizedText:
    """Sentence pairs as token ids, in memory or mapped from disk.

    Each source is stored before its target, so that a pair is contiguous on disk. A uint16 token
    takes two bytes, and the offsets of a pair take 16.

    Args:
        ids: Array of all token ids, without begin and end ids: uint16 if no vocabulary has more
            than 65,536 tokens, int32 otherwise.
        offsets: int64 array `(2 * pairs + 1,)`: side k is `ids[offsets[k] : offsets[k + 1]]`. Side
            2n is the source of pair n, and side 2n + 1 its target.
        dropped: Indices of the pairs that were dropped because a side had too many tokens.
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray, dropped: Collection[int] = ()) -> None:
        self.ids = ids
        self.offsets = offsets
        self.dropped = dropped

    @classmethod
    def build(
        cls,
        parallel_text: SentencePairs,
        tokenizers: Sequence[GraphTokenizer],
        max_length: int,
        cache_dir: FilePath | None = None,
        processes: int = 1,
    ) -> "TokenizedText":
        """Tokenize parallel text in chunks, and drop the pairs with a side that is too long.

        Args:
            parallel_text: The sentence pairs.
            tokenizers: That of the sources and that of the targets.
            max_length: Maximum number of tokens in a sentence, its end included.
            cache_dir: Directory that keeps the ids for all runs with the same input; None keeps
                the ids in memory.
            processes: Number of processes that fill a cache with the parts of the text; see
                `map_in_processes`.

        Raises:
            DataError: If all pairs are too long, the cache cannot be written, or a tokenizer gives
                an id outside its vocabulary.
        """
        is_small = max(tokenizer.vocab_size for tokenizer in tokenizers) <= 2**16
        dtype = np.dtype(np.uint16 if is_small else np.int32)
        dropped: list[int] = []
        if cache_dir is None:
            arrays = _Tokenizing(tokenizers, max_length, dtype).arrays(parallel_text, dropped)
            text = cls(*map(np.concatenate, zip(*arrays, strict=True)), dropped)
            _require_short(dropped, len(parallel_text), max_length)
            return text
        key = [parallel_text.fingerprint, max_length, dtype.str]
        key += [hashlib.sha256(tokenizer.model).hexdigest() for tokenizer in tokenizers]
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        path = Path(cache_dir) / f"ids-{name[:16]}"
        if not path.exists():
            try:
                with atomic_folder(path) as folder:
                    parts = parallel_text.parts() if processes > 1 else [parallel_text]
                    write = _Tokenizing(tokenizers, max_length, dtype, folder).write
                    num_pairs, jobs = 0, list(enumerate(parts))
                    for number, of_part in enumerate(map_in_processes(write, jobs, processes)):
                        dropped += [num_pairs + index for index in of_part]
                        num_pairs = len(dropped) + _append(folder, number, dtype)
                    _require_short(dropped, num_pairs, max_length)
                    np.save(folder / "dropped.npy", np.array(dropped, np.int64))
            except OSError as error:
                if not path.exists():  # Another process may have been faster.
                    raise DataError(
                        f"{cache_dir}: the ids of the training text cannot be kept there "
                        f"({error.strerror}); free some space, or give another --data-cache"
                    ) from error
        ids = np.asarray(np.memmap(path / "ids", dtype, "r"))
        offsets = np.asarray(np.memmap(path / "offsets", np.int64, "r"))
        return cls(ids, offsets, np.load(path / "dropped.npy"))

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.offsets) // 2

    @property
    def lengths(self) -> np.ndarray:
        """Numbers of tokens, int32 `(2, pairs)`: those of the sources, then of the targets."""
        return np.diff(self.offsets).reshape(-1, 2).T.astype(np.int32, order="C")

    def padded(self, sides: np.ndarray, pad_id: int, eos_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Return some sentences as one array, each with its end id, padded to the longest.

        Args:
            sides: int array `(B,)`: 2n is the source of pair n, and 2n + 1 its target.
            pad_id: Token id of padding.
            eos_id: Token id that ends a sentence.

        Returns:
            Token ids, int32 `(B, length)`, and a mask, bool `(B, length)`, which is True where an
            id is neither the end nor padding.
        """
        starts = self.offsets[sides, None]
        lengths = self.offsets[sides + 1, None] - starts
        columns = np.arange(lengths.max(initial=0) + 1)
        is_token = columns < lengths
        padded = np.where(columns == lengths, eos_id, pad_id).astype(np.int32)
        padded[is_token] = self.ids[(starts + columns)[is_token]]
        return padded, is_token


@dataclasses.dataclass(frozen=True)
class ChangingText:
    """The token ids of a text in an epoch; see `TokenBatches.from_text` for the arguments."""

    unchanged: TokenizedText
    pairs: SentencePairs
    tokenizers: tuple[GraphTokenizer, GraphTokenizer]
    max_length: int
    seed: int
    source_noise: float
    mark_practice: float
    marks: Marks | None

    def __call__(self, epoch: int) -> TokenizedText:
        """Return the pairs as changed in an epoch, each unless that makes a side too long."""
        # The order is seeded with (seed, epoch), so the changes need a different seed.
        random, text = np.random.default_rng((self.seed, epoch, 1)), self.unchanged
        dropped = set(text.dropped)
        kept = (pair for number, pair in enumerate(self.pairs) if number not in dropped)

        def pairs() -> _Pairs:
            sides = itertools.pairwise(text.offsets)
            for chunk in _chunks(kept):
                after, ids = self._change(chunk, random), {}
                for side, tokenizer in enumerate(self.tokenizers):
                    rows = [n for n, pair in enumerate(chunk) if pair[side] != after[n][side]]
                    encoded = _encode(tokenizer, [after[n][side] for n in rows])
                    ids |= {(n, side): row for n, row in zip(rows, encoded, strict=True)}
                for n in range(len(chunk)):
                    old = [text.ids[slice(*next(sides))] for _ in range(2)]
                    new = [ids.get((n, side), old[side]) for side in range(2)]
                    yield new if max(map(len, new)) < self.max_length else old

        arrays = _arrays(pairs(), text.ids.dtype)
        return TokenizedText(*map(np.concatenate, zip(*arrays, strict=True)), text.dropped)

    @functools.cached_property
    def _links(self) -> WordLinks:
        return WordLinks.learn(self.pairs)

    def _change(
        self, pairs: Sequence[tuple[str, str]], random: np.random.Generator
    ) -> list[tuple[str, str]]:
        if self.mark_practice and self.marks:
            symbols = self.marks.symbols
            pairs = practise_marks(pairs, self.mark_practice, random, self._links, symbols)
        if not self.source_noise:
            return pairs
        sources, targets = zip(*pairs, strict=True)
        return list(zip(add_noise(sources, self.source_noise, random), targets, strict=True))


def _require_short(dropped: Sequence[int], num_pairs: int, max_length: int) -> None:
    if len(dropped) == num_pairs:
        raise DataError(
            f"all {num_pairs:,} sentence pairs have more tokens than max_length={max_length} "
            f"allows; raise it, or check the corpus"
        )


@dataclasses.dataclass(frozen=True)
class _Tokenizing:
    """A function that makes the arrays of a `TokenizedText`, or writes those of a part of one."""

    tokenizers: Sequence[GraphTokenizer]
    max_length: int
    dtype: np.dtype
    folder: Path | None = None

    def arrays(
        self, text: SentencePairs, dropped: list[int]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield chunks of the arrays; add the indices of pairs that are too long to `dropped`."""

        def short_pairs() -> _Pairs:
            numbers = itertools.count()
            for chunk in _chunks(text):
                sides = zip(*chunk, strict=True)
                for pair in zip(*map(_encode, self.tokenizers, sides), strict=True):
                    number = next(numbers)
                    if max(map(len, pair)) < self.max_length:
                        yield pair
                    else:
                        dropped.append(number)

        return _arrays(short_pairs(), self.dtype)

    def write(self, job: tuple[int, SentencePairs]) -> list[int]:
        """Write the arrays of part n of a text into files; return what `arrays` dropped."""
        (number, part), dropped = job, []
        ids, offsets = (self.folder / f"{name}{number or ''}" for name in ("ids", "offsets"))
        with open(ids, "wb") as id_file, open(offsets, "wb") as offset_file:
            for some_ids, some_offsets in self.arrays(part, dropped):
                id_file.write(some_ids.tobytes())
                offset_file.write(some_offsets.tobytes())
        return dropped


def _append(folder: Path, number: int, dtype: np.dtype) -> int:
    """Append what `write` wrote for part n to that of part 0; return the number of pairs."""
    whole, part = folder / "offsets", folder / f"offsets{number or ''}"
    if number:
        with open(folder / "ids", "ab") as ids, open(folder / f"ids{number}", "rb") as more:
            end = ids.tell() // dtype.itemsize
            shutil.copyfileobj(more, ids)
        with open(whole, "ab") as offsets:
            offsets.write((end + np.fromfile(part, np.int64)[1:]).tobytes())
        part.unlink()
        (folder / f"ids{number}").unlink()
    return whole.stat().st_size // 16  # of two numbers for each pair, and one more


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the items in lists of at most `_CHUNK_PAIRS` items."""
    items = iter(items)
    while chunk := list(itertools.islice(items, _CHUNK_PAIRS)):
        yield chunk


def _encode(tokenizer: GraphTokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Tokenize texts and check the ids, because uint16 would silently change an id too large."""
    rows = tokenizer.encode(texts)
    ids = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    if ((ids < 0) | (ids >= tokenizer.vocab_size)).any():
        raise DataError(
            f"the tokenizer gave token ids from {ids.min()} to {ids.max()}, but its vocabulary has "
            f"{tokenizer.vocab_size} tokens; correct its vocab_size"
        )
    return rows


def _arrays(pairs: _Pairs, dtype: np.dtype) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the arrays `ids` and `offsets` of a `TokenizedText` in parts."""
    end = 0
    yield np.empty(0, dtype), np.zeros(1, np.int64)
    for chunk in _chunks(pairs):
        sides = list(itertools.chain.from_iterable(chunk))
        ends = end + np.cumsum(np.fromiter(map(len, sides), np.int64))
        yield np.fromiter(itertools.chain.from_iterable(sides), dtype), ends
        end = ends[-1]
