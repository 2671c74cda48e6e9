"""Parallel text as ids."""

import hashlib
import io
import itertools

import numpy as np

from tf_transformer.data.token_cache import TokenCache

_PAIRS_AT_ONCE = 10_000


class TokenizedText:
    """Aligned sentences as ids, in memory or mapped from the disk.

    All ids stand in one array, each source before its target, so that a pair is one place on the
    disk; that is two bytes an id, and 16 a pair for the offsets.

    Args:
        ids: integer array, uint16 where the vocabularies allow, without begin and end ids.
        offsets: int64 array of twice the pairs plus 1: side k, counted from 0 over sources and
            targets in turns, is `ids[offsets[k] : offsets[k + 1]]`.
        num_too_long: int, pairs left out because a side had more pieces than allowed.
    """

    def __init__(self, ids, offsets, num_too_long=0):
        self.ids = ids
        self.offsets = offsets
        self.num_too_long = num_too_long

    @classmethod
    def of(cls, sources, targets, num_too_long=0):
        """Takes sentences that are ids already.

        Args:
            sources, targets: lists of integer sequences, as many of each.
            num_too_long: int.
        """
        sides = [side for pair in zip(sources, targets, strict=True) for side in pair]
        offsets = np.cumsum([0, *map(len, sides)], dtype=np.int64)
        return cls(_flat(sides, np.int32), offsets, num_too_long)

    @classmethod
    def build(cls, parallel_text, source_tokenizer, target_tokenizer, max_length, cache_dir=None):
        """Tokenizes parallel text piece by piece, and drops the pairs with a side too long.

        Args:
            parallel_text: `ParallelText` or `TextFiles`.
            source_tokenizer, target_tokenizer: tokenizers with `encode` and `vocab_size`, for a
                cache also `model`.
            max_length: int, pieces a side may have, the end id included.
            cache_dir: path of a folder in which the ids are kept and found again, whoever asks
                for the same; None to hold them in memory.

        Returns:
            `TokenizedText`.

        Raises:
            DataError: the text cannot be read, or the cache not be written.
        """
        tokenizers = (source_tokenizer, target_tokenizer)
        most = max(tokenizer.vocab_size for tokenizer in tokenizers)
        dtype = np.uint16 if most <= 2**16 else np.int32

        def write(ids, offsets):
            return _tokenize(parallel_text, tokenizers, max_length, dtype, ids, offsets)

        if cache_dir is None:
            ids, offsets = io.BytesIO(), io.BytesIO()
            num_too_long = write(ids, offsets)
            return cls(_array(ids, dtype), _array(offsets, np.int64), num_too_long)
        made_of = {
            "text": str(parallel_text.fingerprint),
            "tokenizers": [hashlib.sha256(t.model).hexdigest() for t in tokenizers],
            "max_length": max_length,
        }
        cache = TokenCache(cache_dir, made_of, dtype)
        return cls(*(cache.find() or cache.fill(write)))

    def __len__(self):
        """Pairs."""
        return len(self.offsets) // 2

    @property
    def num_target_tokens(self):
        """Tokens the model learns to predict in one pass: the targets and their end ids."""
        return int(self.target_lengths.sum(dtype=np.int64)) + len(self)

    def num_target_tokens_of(self, rows):
        """The same of some pairs: an int array of their numbers."""
        return int((self.offsets[2 * rows + 2] - self.offsets[2 * rows + 1]).sum()) + len(rows)

    @property
    def source_lengths(self):
        """Ids of each source, int32."""
        return (self.offsets[1::2] - self.offsets[:-1:2]).astype(np.int32)

    @property
    def target_lengths(self):
        """Ids of each target, int32."""
        return (self.offsets[2::2] - self.offsets[1::2]).astype(np.int32)

    def source(self, row):
        """The ids of one source."""
        return self.ids[self.offsets[2 * row] : self.offsets[2 * row + 1]]

    def target(self, row):
        """The ids of one target."""
        return self.ids[self.offsets[2 * row + 1] : self.offsets[2 * row + 2]]

    def padded_sources(self, rows, pad_id):
        """The ids of some sources.

        Args:
            rows: int array of pairs, `(B,)`.
            pad_id: int.

        Returns:
            int32 array `(B, S)` of ids, padded to the longest, and their lengths, int64 `(B,)`.
        """
        return self._padded(2 * rows, pad_id)

    def padded_targets(self, rows, pad_id):
        """The ids of some targets, see `padded_sources`."""
        return self._padded(2 * rows + 1, pad_id)

    def _padded(self, sides, pad_id):
        starts = self.offsets[sides]
        lengths = self.offsets[sides + 1] - starts
        columns = np.arange(lengths.max())
        is_id = columns < lengths[:, None]
        padded = np.full(is_id.shape, pad_id, np.int32)
        padded[is_id] = self.ids[(starts[:, None] + columns)[is_id]]
        return padded, lengths


def _tokenize(pairs, tokenizers, max_length, dtype, ids_file, offsets_file):
    """Writes ids and offsets of the pairs that are short enough, and counts the others."""
    end, num_too_long = 0, 0
    offsets_file.write(np.array([end], np.int64).tobytes())
    pairs = iter(pairs)
    while chunk := list(itertools.islice(pairs, _PAIRS_AT_ONCE)):
        encoded = [
            tokenizer.encode(side)
            for tokenizer, side in zip(tokenizers, zip(*chunk, strict=True), strict=True)
        ]
        kept = [pair for pair in zip(*encoded, strict=True) if max(map(len, pair)) < max_length]
        num_too_long += len(chunk) - len(kept)
        sides = list(itertools.chain.from_iterable(kept))
        offsets = end + np.cumsum([len(side) for side in sides], dtype=np.int64)
        ids_file.write(_flat(sides, dtype).tobytes())
        offsets_file.write(offsets.tobytes())
        end = offsets[-1] if sides else end
    return num_too_long


def _flat(sides, dtype):
    return np.fromiter(itertools.chain.from_iterable(sides), dtype)


def _array(buffer, dtype):
    """The content of a `BytesIO`, without a copy."""
    return np.frombuffer(buffer.getbuffer(), dtype) if buffer.tell() else np.empty(0, dtype)
