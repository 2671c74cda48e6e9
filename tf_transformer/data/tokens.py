"""Sentence pairs as token ids, in memory or in a cache on disk."""

import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tf_transformer.data.corpus import Remainder
from tf_transformer.data.noise import add_noise
from tf_transformer.data.text import DataError, FilePath, ParallelText, TextFiles
from tf_transformer.files import atomic_folder

_CHUNK_PAIRS = 10_000
_IDS, _OFFSETS, _DROPPED = "ids", "offsets", "dropped.npy"  # files of a cache

_Pairs = Iterable[tuple[Sequence[int], Sequence[int]]]


class Tokenizer(Protocol):
    """What tokenizing and batching need of a tokenizer; `model` identifies it in a cache."""

    model: bytes
    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each text, without begin and end ids."""


class TokenizedText:
    """Sentence pairs as token ids, in memory or mapped from disk.

    One array holds all ids, each source before its target, so that a pair is contiguous on disk.
    That takes two bytes a token, and 16 a pair for the offsets.

    Args:
        ids: integer array of token ids, uint16 where the vocabularies allow, without begin and
            end ids.
        offsets: int64 array `(2 * pairs + 1,)`: side k is `ids[offsets[k] : offsets[k + 1]]`, where
            sources and targets are counted in turn.
        dropped: Which pairs of the text were dropped because a side had too many tokens.
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray, dropped: Collection[int] = ()) -> None:
        self.ids = ids
        self.offsets = offsets
        self.dropped = dropped

    @classmethod
    def build(
        cls,
        parallel_text: ParallelText | TextFiles | Remainder,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        max_length: int,
        cache_dir: FilePath | None = None,
    ) -> "TokenizedText":
        """Tokenizes parallel text chunk by chunk, and drops the pairs with a side too long.

        Args:
            parallel_text: The sentence pairs.
            source_tokenizer: Tokenizer of the source sentences.
            target_tokenizer: Tokenizer of the target sentences.
            max_length: Most tokens of a sentence, the end included.
            cache_dir: Directory in which the ids are kept, and found again by any run that needs
                the same; None to keep them in memory.

        Raises:
            DataError: If the text cannot be read, all pairs are too long, the cache cannot be
                written, or a tokenizer gives an id outside its vocabulary.
        """
        tokenizers = (source_tokenizer, target_tokenizer)
        dropped: list[int] = []

        def short_pairs() -> _Pairs:
            number = -1
            for number, pair in enumerate(_encode(parallel_text, tokenizers)):
                if max(map(len, pair)) < max_length:
                    yield pair
                else:
                    dropped.append(number)
            if number + 1 == len(dropped):
                raise DataError(
                    f"all {number + 1:,} sentence pairs have more tokens than max_length="
                    f"{max_length} allows; raise it, or check the corpus"
                )

        is_small = max(tokenizer.vocab_size for tokenizer in tokenizers) <= 2**16
        dtype = np.dtype(np.uint16 if is_small else np.int32)
        arrays = _arrays(short_pairs(), dtype)
        if cache_dir is None:
            return cls(*map(np.concatenate, zip(*arrays, strict=True)), dropped)
        key = [str(parallel_text.fingerprint), max_length, dtype.str]
        key += [hashlib.sha256(tokenizer.model).hexdigest() for tokenizer in tokenizers]
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        path = Path(cache_dir) / f"ids-{name[:16]}"
        if not path.exists():
            try:
                with atomic_folder(path) as folder:
                    with (folder / _IDS).open("wb") as ids, (folder / _OFFSETS).open("wb") as ends:
                        for parts in arrays:
                            ids.write(parts[0].tobytes())
                            ends.write(parts[1].tobytes())
                    np.save(folder / _DROPPED, np.array(dropped, np.int64))
            except OSError as error:
                if not path.exists():  # Another process may have been faster.
                    raise DataError(
                        f"{cache_dir}: the ids of the training text cannot be kept there "
                        f"({error.strerror}); free some space, or give another --data-cache"
                    ) from error
        ids, offsets = (
            np.asarray(np.memmap(path / name, kind, "r"))
            for name, kind in ((_IDS, dtype), (_OFFSETS, np.int64))
        )
        return cls(ids, offsets, np.load(path / _DROPPED))

    def with_noise(
        self,
        parallel_text: Iterable[tuple[str, str]],
        source_tokenizer: Tokenizer,
        max_length: int,
        probability: float,
        seed: Sequence[int],
    ) -> "TokenizedText":
        """Returns the same pairs with noise in their sources, see `add_noise`.

        Args:
            parallel_text: The sentence pairs from which this was built.
            source_tokenizer: Tokenizer of the source sentences.
            max_length: Most tokens of a sentence, the end included. A source that noise makes
                longer stays as it is.
            probability: Probability of noise in a sentence.
            seed: Seed of the noise.
        """
        random, dropped = np.random.default_rng(seed), set(self.dropped)
        sources = (s for number, (s, _) in enumerate(parallel_text) if number not in dropped)

        def pairs() -> _Pairs:
            numbers = itertools.count()
            for chunk in _chunks(sources):
                noisy = _ids_of(add_noise(chunk, probability, random), source_tokenizer)
                for source, number in zip(noisy, numbers, strict=False):
                    fits = len(source) < max_length
                    yield source if fits else self.source(number), self.target(number)

        arrays = _arrays(pairs(), self.ids.dtype)
        return TokenizedText(*map(np.concatenate, zip(*arrays, strict=True)), self.dropped)

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.offsets) // 2

    @property
    def num_too_long(self) -> int:
        """Number of pairs dropped because a side had too many tokens."""
        return len(self.dropped)

    @property
    def num_target_tokens(self) -> int:
        """Number of tokens to predict in one epoch: the targets and their ends."""
        return int(self.target_lengths.sum(dtype=np.int64)) + len(self)

    @property
    def source_lengths(self) -> np.ndarray:
        """Number of tokens of each source, int32."""
        return (self.offsets[1::2] - self.offsets[:-1:2]).astype(np.int32)

    @property
    def target_lengths(self) -> np.ndarray:
        """Number of tokens of each target, int32."""
        return (self.offsets[2::2] - self.offsets[1::2]).astype(np.int32)

    def source(self, index: int) -> np.ndarray:
        """Returns the token ids of one source."""
        return self.ids[self.offsets[2 * index] : self.offsets[2 * index + 1]]

    def target(self, index: int) -> np.ndarray:
        """Returns the token ids of one target."""
        return self.ids[self.offsets[2 * index + 1] : self.offsets[2 * index + 2]]

    def padded_sources(self, indices: np.ndarray, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns some sources as one array.

        Args:
            indices: int array `(B,)` of pairs.
            pad_id: Token id of padding.

        Returns:
            int32 array `(B, S)` of token ids, padded to the longest, and their lengths, int64
            `(B,)`.
        """
        return self._padded(2 * indices, pad_id)

    def padded_targets(self, indices: np.ndarray, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns some targets as one array, see `padded_sources`."""
        return self._padded(2 * indices + 1, pad_id)

    def _padded(self, sides: np.ndarray, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
        starts = self.offsets[sides]
        lengths = self.offsets[sides + 1] - starts
        columns = np.arange(lengths.max())
        is_id = columns < lengths[:, None]
        padded = np.full(is_id.shape, pad_id, np.int32)
        padded[is_id] = self.ids[(starts[:, None] + columns)[is_id]]
        return padded, lengths


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields lists of as many items as are tokenized at a time."""
    items = iter(items)
    while chunk := list(itertools.islice(items, _CHUNK_PAIRS)):
        yield chunk


def _encode(pairs: Iterable[tuple[str, str]], tokenizers: tuple[Tokenizer, Tokenizer]) -> _Pairs:
    for chunk in _chunks(pairs):
        yield from zip(*map(_ids_of, zip(*chunk, strict=True), tokenizers), strict=True)


def _ids_of(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Tokenizes texts; as uint16, an id outside the vocabulary would silently become another."""
    rows = tokenizer.encode(texts)
    ids = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    if ((ids < 0) | (ids >= tokenizer.vocab_size)).any():
        raise DataError(
            f"the tokenizer gave token ids from {ids.min()} to {ids.max()}, but its vocabulary has "
            f"{tokenizer.vocab_size} tokens; mend its vocab_size"
        )
    return rows


def _arrays(pairs: _Pairs, dtype: np.dtype) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the arrays `ids` and `offsets` of a `TokenizedText` in parts."""
    end = 0
    yield np.empty(0, dtype), np.zeros(1, np.int64)
    for chunk in _chunks(pairs):
        sides = list(itertools.chain.from_iterable(chunk))
        ends = end + np.cumsum(np.fromiter(map(len, sides), np.int64))
        yield np.fromiter(itertools.chain.from_iterable(sides), dtype), ends
        end = ends[-1]
