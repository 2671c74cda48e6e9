"""Smaller vocabularies: a SentencePiece model without some subwords that splits texts as before."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, TokenizerError

_LINES_AT_ONCE = 10_000  # their ids take memory


class Recorder:
    """A tokenizer that marks the ids which are read from texts or made into texts in the graph."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        self._tokenizer = tokenizer
        with tf.init_scope(), tf.device("CPU"):
            self._marks = tf.Variable(tf.zeros([tokenizer.vocab_size], tf.bool), trainable=False)

    def __getattr__(self, name: str) -> Any:
        """All but the two methods below is that of the tokenizer."""
        return getattr(self._tokenizer, name)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """As the tokenizer; marks the ids."""
        return self._mark(self._tokenizer.tokenize(texts))

    def detokenize(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """As the tokenizer; marks the ids."""
        return self._tokenizer.detokenize(self._mark(ids))

    def marked(self) -> set[int]:
        """Returns the ids that were marked so far."""
        return set(np.flatnonzero(self._marks.numpy()).tolist())

    def _mark(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        marks = tf.IndexedSlices(tf.ones_like(ids.flat_values, tf.bool), ids.flat_values)
        self._marks.scatter_update(marks)
        return ids


def used_ids(tokenizer: SentencePieceTokenizer, texts: Sequence[str]) -> set[int]:
    """Returns the ids of all subwords in texts."""
    return {index for batch in _batches(texts) for row in tokenizer.encode(batch) for index in row}


def trim_tokenizer(
    tokenizer: SentencePieceTokenizer, used: Iterable[int]
) -> tuple[SentencePieceTokenizer, np.ndarray]:
    """Returns a tokenizer of fewer subwords, which splits texts of used ones exactly as before.

    Special ids, bytes and single characters stay: other texts become shorter subwords, and bytes
    only where they did before. Ids keep their order, and subwords their scores.

    BPE also needs the subwords from which a kept one is merged. They stay behind the vocabulary, so
    that a model need not know them, and are "unused", as in SentencePiece's own `SetVocabulary`:
    one that is not merged further is taken apart again.

    Args:
        tokenizer: The tokenizer.
        used: The ids that must be kept.

    Returns:
        The smaller tokenizer, and the ids that its subwords had, int64, in their order.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    pieces, spec = proto.pieces, proto.trainer_spec
    subwords = {p.piece: i for i, p in enumerate(pieces) if p.type in (p.NORMAL, p.UNUSED)}
    kept = set(range(len(pieces))) - set(subwords.values()) | set(used)
    kept.update(index for piece, index in subwords.items() if len(piece) == 1)
    merged = set()
    if spec.model_type == spec.BPE:
        scores = {piece: pieces[index].score for piece, index in subwords.items()}
        needed = [piece for piece, index in subwords.items() if index in kept]
        merged = {subwords[part] for piece in needed for part in _merges(piece, scores)} - kept
    ids = sorted(kept)
    left = [pieces[index] for index in [*ids, *sorted(merged)]]
    for piece in left[len(ids) :]:
        piece.type = piece.UNUSED
    del pieces[:]
    pieces.extend(left)
    spec.vocab_size = len(left)
    return SentencePieceTokenizer(proto.SerializeToString(deterministic=True)), np.array(ids)


def require_same_splits(
    tokenizer: SentencePieceTokenizer,
    trimmed: SentencePieceTokenizer,
    ids: np.ndarray,
    texts: Sequence[str],
) -> None:
    """Raises unless a trimmed tokenizer splits texts into the subwords of the other.

    Args:
        tokenizer: The tokenizer.
        trimmed: The trimmed one.
        ids: The ids that its subwords had.
        texts: The texts.

    Raises:
        TokenizerError: A text is split another way.
    """
    for batch in _batches(texts):
        rows = zip(batch, tokenizer.encode(batch), trimmed.encode(batch), strict=True)
        for text, before, after in rows:
            if before != ids[after].tolist():
                raise TokenizerError(
                    f"this SentencePiece model cannot be trimmed: {text[:80]!r} would be split "
                    f"another way."
                )


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), _LINES_AT_ONCE):
        yield texts[start : start + _LINES_AT_ONCE]


def _merges(piece: str, scores: Mapping[str, float]) -> Iterator[str]:
    """The subwords that BPE merges on the way from characters to a subword, the last included.

    These are the same within any text: merges outside do not change their order, and none reached
    across the ends of the subword.
    """
    symbols = list(piece)
    while True:
        pairs = enumerate(map("".join, itertools.pairwise(symbols)))
        known = [(-scores[pair], place, pair) for place, pair in pairs if pair in scores]
        if not known:
            return
        _, place, merged = min(known)
        symbols[place : place + 2] = [merged]
        yield merged
