"""Parallel text as token ids."""

import hashlib
import io
import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np

from tf_transformer.data.held_out import Remainder
from tf_transformer.data.lines import DataError
from tf_transformer.data.parallel import ParallelText
from tf_transformer.data.text_files import TextFiles
from tf_transformer.data.token_cache import TokenCache

_CHUNK_PAIRS = 10_000


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
    That takes two bytes a token, and 16 a pair for the offsets. Sentence sides are numbered from
    0, sources and targets in turn.

    Args:
        ids: integer array of token ids, uint16 where the vocabularies allow, without begin and
            end ids.
        offsets: int64 array `(2 * pairs + 1,)`: side k is `ids[offsets[k] : offsets[k + 1]]`.
        num_too_long: Number of pairs dropped because a side had too many tokens.
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray, num_too_long: int = 0) -> None:
        self.ids = ids
        self.offsets = offsets
        self.num_too_long = num_too_long

    @classmethod
    def of(
        cls,
        sources: Iterable[Sequence[int]],
        targets: Iterable[Sequence[int]],
        vocab_size: int | tuple[int, int],
        num_too_long: int = 0,
    ) -> "TokenizedText":
        """Takes sentences that are token ids already.

        Args:
            sources: Token ids of each source sentence, without begin and end ids.
            targets: Token ids of each target sentence, as many as there are sources.
            vocab_size: Size of the joint vocabulary, or of the source and the target vocabulary.
            num_too_long: Number of pairs that were dropped before.

        Raises:
            DataError: If an id is outside its vocabulary, or the numbers of sentences differ.
            TypeError: If an id is not an integer.
        """
        sources, targets = (
            [list(map(operator.index, s)) for s in side] for side in (sources, targets)
        )
        if len(sources) != len(targets):
            raise DataError(
                f"received {len(sources)} sources and {len(targets)} targets; "
                "give one target for each source"
            )
        vocab_sizes = vocab_size if isinstance(vocab_size, tuple) else (vocab_size, vocab_size)
        sides = list(itertools.chain.from_iterable(zip(sources, targets, strict=True)))
        ids, stops = _concatenated(sides, vocab_sizes)
        return cls(ids.astype(np.int32), np.insert(stops, 0, 0), num_too_long)

    @classmethod
    def of_pairs(
        cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], vocab_sizes: tuple[int, int]
    ) -> "TokenizedText":
        """Takes pairs of token ids one after another, which need not fit into memory as lists.

        Args:
            pairs: Token ids of source and target, without begin and end ids.
            vocab_sizes: Sizes of the source and the target vocabulary.

        Raises:
            DataError: If an id is outside its vocabulary.
        """
        dtype = _id_dtype(vocab_sizes)
        ids, offsets = io.BytesIO(), io.BytesIO()
        _write(pairs, vocab_sizes, dtype, ids, offsets)
        return cls(_array(ids, dtype), _array(offsets, np.int64))

    @classmethod
    def build(
        cls,
        parallel_text: ParallelText | TextFiles | Remainder,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        max_length: int,
        cache_dir: str | os.PathLike[str] | None = None,
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
            DataError: If the text cannot be read, the cache cannot be written, or a tokenizer
                gives an id outside its vocabulary.
        """
        tokenizers = (source_tokenizer, target_tokenizer)
        dtype = _id_dtype(tuple(tokenizer.vocab_size for tokenizer in tokenizers))

        def write(ids: BinaryIO, offsets: BinaryIO) -> int:
            return _tokenize(parallel_text, tokenizers, max_length, dtype, ids, offsets)

        if cache_dir is None:
            ids, offsets = io.BytesIO(), io.BytesIO()
            num_too_long = write(ids, offsets)
            return cls(_array(ids, dtype), _array(offsets, np.int64), num_too_long)
        metadata = {
            "text": str(parallel_text.fingerprint),
            "tokenizers": [hashlib.sha256(t.model).hexdigest() for t in tokenizers],
            "max_length": max_length,
        }
        cache = TokenCache(cache_dir, metadata, dtype)
        return cls(*(cache.find() or cache.fill(write)))

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.offsets) // 2

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


def _tokenize(
    pairs: Iterable[tuple[str, str]],
    tokenizers: tuple[Tokenizer, Tokenizer],
    max_length: int,
    dtype: type[np.integer],
    ids_file: BinaryIO,
    offsets_file: BinaryIO,
) -> int:
    """Writes ids and offsets of the pairs that are short enough; returns how many are not."""
    num_too_long = 0

    def short_enough():
        nonlocal num_too_long
        for chunk in chunks_of(pairs):
            kept = [pair for pair in encode_pairs(chunk, *tokenizers) if fits(pair, max_length)]
            num_too_long += len(chunk) - len(kept)
            yield from kept

    vocab_sizes = tuple(tokenizer.vocab_size for tokenizer in tokenizers)
    _write(short_enough(), vocab_sizes, dtype, ids_file, offsets_file)
    return num_too_long


def chunks_of(pairs: Iterable[Any]) -> Iterator[list[Any]]:
    """Lists of pairs, as many as are tokenized at a time."""
    pairs = iter(pairs)
    while chunk := list(itertools.islice(pairs, _CHUNK_PAIRS)):
        yield chunk


def encode_pairs(
    pairs: list[tuple[str, str]], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> list[tuple[list[int], list[int]]]:
    """The token ids of some pairs."""
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    return list(
        zip(source_tokenizer.encode(sources), target_tokenizer.encode(targets), strict=True)
    )


def fits(pair: tuple[Sequence[int], Sequence[int]], max_length: int) -> bool:
    """Whether both sides of a pair of token ids leave space for the end."""
    return max(map(len, pair)) < max_length


def _write(
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
    vocab_sizes: tuple[int, int],
    dtype: type[np.integer],
    ids_file: BinaryIO,
    offsets_file: BinaryIO,
) -> None:
    """Writes the ids of pairs, and where each side stops."""
    end = 0
    offsets_file.write(np.array([end], np.int64).tobytes())
    for chunk in chunks_of(pairs):
        ids, stops = _concatenated(list(itertools.chain.from_iterable(chunk)), vocab_sizes)
        ids_file.write(ids.astype(dtype).tobytes())
        offsets_file.write((end + stops).tobytes())
        end += len(ids)


def _id_dtype(vocab_sizes: tuple[int, int]) -> type[np.integer]:
    return np.uint16 if max(vocab_sizes) <= 2**16 else np.int32


def _concatenated(
    sides: list[list[int]], vocab_sizes: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of sources and targets in turn, and where each side stops, both int64."""
    ids = np.fromiter(itertools.chain.from_iterable(sides), np.int64)
    lengths = np.fromiter(map(len, sides), np.int64)
    limits = np.repeat(np.resize(vocab_sizes, len(sides)), lengths)
    outside = np.flatnonzero((ids < 0) | (ids >= limits))
    if outside.size:
        token_id, limit = ids[outside[0]], limits[outside[0]]
        raise DataError(
            f"token id {token_id} is not in the vocabulary of {limit} tokens, 0 to {limit - 1}; "
            "use the tokenizer that the ids come from"
        )
    return ids, np.cumsum(lengths)


def _array(buffer: io.BytesIO, dtype: type[np.generic]) -> np.ndarray:
    """Returns the content of a buffer without copying it."""
    return np.frombuffer(buffer.getbuffer(), dtype) if buffer.tell() else np.empty(0, dtype)
