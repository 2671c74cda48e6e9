"""Tokenizers with fewer subwords, which split given texts as the full tokenizers do."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, TokenizerError
from tf_transformer.tokenizers.vocabulary import VocabularyTokenizer
from tf_transformer.tokenizers.wordpiece import CONTINUED, SPECIAL, WordPieceTokenizer

Tokenizer = SentencePieceTokenizer | WordPieceTokenizer
Subset = tuple[Tokenizer, np.ndarray]  # and the old id of each subword


class Recorder:
    """A tokenizer that has `recorded` all ids that `tokenize` returned or `detokenize` received."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.recorded: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped tokenizer that this class does not define itself."""
        return getattr(self._tokenizer, name)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenize texts with the wrapped tokenizer and record the ids."""
        return self._record(self._tokenizer.tokenize(texts))

    def detokenize(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Record ids and detokenize them with the wrapped tokenizer."""
        return self._tokenizer.detokenize(self._record(ids))

    def _record(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        tf.numpy_function(lambda found: self.recorded.update(found.tolist()), [ids.flat_values], [])
        return ids


def used_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> set[int]:
    """Return the ids of all subwords in texts."""
    return set(itertools.chain.from_iterable(tokenizer.encode(texts)))


@functools.singledispatch
def subset_tokenizer(tokenizer: Tokenizer, used: Iterable[int]) -> Subset:
    """Return a tokenizer with fewer subwords that splits texts of used subwords as before.

    Special ids, bytes and single characters are always kept. Other texts are therefore split into
    shorter subwords, and into bytes only where they were split into bytes before. Ids keep their
    order, and subwords keep their scores.

    BPE also needs the intermediate subwords from which a kept subword is merged. The intermediate
    subwords come after the vocabulary, so the translation model never sees their ids. Their type is
    `UNUSED`, as in SentencePiece's own `SetVocabulary`: SentencePiece splits an unused subword
    again if it is not merged further.

    Returns:
        The smaller tokenizer, and an int64 array with the old id of each subword of its vocabulary.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    pieces, spec = proto.pieces, proto.trainer_spec
    subwords = {p.piece: i for i, p in enumerate(pieces) if p.type in (p.NORMAL, p.UNUSED)}
    kept = (set(range(len(pieces))) - set(subwords.values())) | set(used)
    kept.update(index for piece, index in subwords.items() if len(piece) == 1)
    merged = set()
    if spec.model_type == spec.BPE:
        scores = {piece: pieces[index].score for piece, index in subwords.items()}
        needed = [piece for piece, index in subwords.items() if index in kept]
        merged = {subwords[part] for piece in needed for part in _merges(piece, scores)} - kept
    for index in merged:
        pieces[index].type = pieces[index].UNUSED
    ids = sorted(kept)
    return SentencePieceTokenizer(_with_pieces(proto, [*ids, *sorted(merged)])), np.array(ids)


@subset_tokenizer.register
def _(tokenizer: VocabularyTokenizer, used: Iterable[int]) -> Subset:
    table = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.table)
    rows = enumerate(table.pieces)
    kept = {i for i, p in rows if p.type != p.NORMAL or len(p.piece) == 1} | set(used)
    ids = sorted(kept)
    # The ids of the splitter do not matter. It splits an unused subword again, see above.
    splitter = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.splitter)
    dropped = {piece.piece for index, piece in enumerate(table.pieces) if index not in kept}
    for piece in splitter.pieces:
        # A subword that the table never had stays, and stays unknown.
        if piece.type == piece.NORMAL and piece.piece in dropped:
            piece.type = piece.UNUSED
    splitter = splitter.SerializeToString(deterministic=True)
    return VocabularyTokenizer(_with_pieces(table, ids), splitter), np.array(ids)


@subset_tokenizer.register
def _(tokenizer: WordPieceTokenizer, used: Iterable[int]) -> Subset:
    rows = enumerate(tokenizer.subwords(range(tokenizer.vocab_size)))
    kept = {i for i, s in rows if len(s.removeprefix(CONTINUED)) == 1 or s in SPECIAL.values()}
    ids = sorted(kept | set(used))
    return tokenizer.subset(ids), np.array(ids)


def _with_pieces(proto: sentencepiece_model_pb2.ModelProto, ids: Sequence[int]) -> bytes:
    """Return a model with some of the subwords, in the order of `ids`."""
    pieces = [proto.pieces[index] for index in ids]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    proto.trainer_spec.vocab_size = len(pieces)
    return proto.SerializeToString(deterministic=True)


def require_same_splits(
    tokenizer: Tokenizer, subset: Tokenizer, ids: np.ndarray, texts: Sequence[str]
) -> None:
    """Raise a `TokenizerError` unless `subset` splits the texts as `tokenizer` does.

    `ids` are the old ids of the subwords of `subset`, as `subset_tokenizer` returns them.
    """
    rows = zip(texts, tokenizer.encode(texts), subset.encode(texts), strict=True)
    for text, before, after in rows:
        if before != ids[after].tolist():
            raise TokenizerError(
                f"this tokenizer cannot be trimmed: {text[:80]!r} would be split another way."
            )


def _merges(piece: str, scores: Mapping[str, float]) -> Iterator[str]:
    """Yield the subwords that BPE merges to build `piece` from its characters, including `piece`.

    The merges are the same in any text that contains the subword, because merges outside the
    subword do not change their order and no merge crosses the ends of the subword.
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
