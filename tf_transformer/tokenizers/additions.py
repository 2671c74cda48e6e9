"""Tokenizers with further subwords, each one token wherever it occurs in a text."""

import functools
from collections.abc import Iterable

from sentencepiece import sentencepiece_model_pb2

from tf_transformer.tokenizers.sentencepiece import FileTokenizer, SentencePieceTokenizer
from tf_transformer.tokenizers.vocabulary import VocabularyTokenizer


@functools.singledispatch
def with_symbols(tokenizer: FileTokenizer, symbols: Iterable[str]) -> FileTokenizer:
    """Return a tokenizer that also has the symbols, after its own subwords.

    A `WordPieceTokenizer` is returned as it is: no model that translates has one.
    """
    return tokenizer


@with_symbols.register
def _(tokenizer: SentencePieceTokenizer, symbols: Iterable[str]) -> FileTokenizer:
    model = _with_pieces(tokenizer.model, tokenizer.vocab_size, symbols)
    return tokenizer if model == tokenizer.model else SentencePieceTokenizer(model)


@with_symbols.register
def _(tokenizer: VocabularyTokenizer, symbols: Iterable[str]) -> FileTokenizer:
    if not (symbols := [s for s in symbols if s not in tokenizer.user_symbols]):
        return tokenizer  # the splitter must not see its tags
    table = _with_pieces(tokenizer.table, tokenizer.vocab_size, symbols)
    size = len(sentencepiece_model_pb2.ModelProto.FromString(tokenizer.splitter).pieces)
    return VocabularyTokenizer(table, _with_pieces(tokenizer.splitter, size, symbols))


def _with_pieces(model: bytes, size: int, symbols: Iterable[str]) -> bytes:
    """Return a SentencePiece model with new symbols after its first `size` subwords."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    known, unused = {piece.piece for piece in proto.pieces}, list(proto.pieces[size:])
    if not (missing := [symbol for symbol in symbols if symbol not in known]):
        return model
    del proto.pieces[size:]
    for symbol in missing:
        proto.pieces.add(piece=symbol, score=0.0, type=proto.SentencePiece.USER_DEFINED)
    proto.pieces.extend(unused)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString(deterministic=True)
