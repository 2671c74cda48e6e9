"""A SentencePiece model with some of the subwords of another, which splits texts as that one."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, TokenizerError


class Recorder:
    """A tokenizer that marks the ids which are read from texts or made into texts in the graph."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        self._tokenizer = tokenizer
        with tf.init_scope(), tf.device("CPU"):
            self._marks = tf.Variable(tf.zeros([tokenizer.vocab_size], tf.bool), trainable=False)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the tokenizer, which this class does not replace."""
        return getattr(self._tokenizer, name)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes as the tokenizer does, and marks the ids."""
        return self._mark(self._tokenizer.tokenize(texts))

    def detokenize(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Detokenizes as the tokenizer does, and marks the ids."""
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
    return set(itertools.chain.from_iterable(tokenizer.encode(texts)))


def subset_tokenizer(
    tokenizer: SentencePieceTokenizer, used: Iterable[int]
) -> tuple[SentencePieceTokenizer, np.ndarray]:
    """Returns a tokenizer of fewer subwords, which splits texts of used ones exactly as before.

    Special ids, bytes and single characters stay: other texts become shorter subwords, and bytes
    only where they did before. Ids keep their order, and subwords their scores.

    BPE also needs the subwords from which a kept one is merged. They stay behind the vocabulary, so
    that a model need not know them, and are "unused", as in SentencePiece's own `SetVocabulary`:
    one that is not merged further is taken apart again.

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
    subset: SentencePieceTokenizer,
    ids: np.ndarray,
    texts: Sequence[str],
) -> None:
    """Raises a `TokenizerError` unless a subset, of subwords with `ids`, splits texts as before."""
    rows = zip(texts, tokenizer.encode(texts), subset.encode(texts), strict=True)
    for text, before, after in rows:
        if before != ids[after].tolist():
            raise TokenizerError(
                f"this SentencePiece model cannot be trimmed: {text[:80]!r} would be split "
                f"another way."
            )


def _merges(piece: str, scores: Mapping[str, float]) -> Iterator[str]:
    """Yields the subwords that BPE merges on the way from characters to a subword, the last too.

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
