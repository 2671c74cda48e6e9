"""Tokenizers with further subwords, each one token wherever it occurs in a text."""

from collections.abc import Iterable

from sentencepiece import sentencepiece_model_pb2

from tf_transformer.tokenizers.sentencepiece import FileTokenizer, SentencePieceTokenizer
from tf_transformer.tokenizers.vocabulary import VocabularyTokenizer
from tf_transformer.tokenizers.wordpiece import WordPieceTokenizer


def with_symbols(tokenizer: FileTokenizer, symbols: Iterable[str]) -> FileTokenizer:
    """Return a tokenizer that also has the symbols, after its own subwords.

    A `WordPieceTokenizer` is returned as it is: no model that translates has one.
    """
    if isinstance(tokenizer, WordPieceTokenizer):
        return tokenizer
    # The splitter of a table must not see the tags of the table, and its own ids do not matter.
    new = [symbol for symbol in symbols if symbol not in tokenizer.user_symbols]
    splitter = _with_pieces(tokenizer.splitter, tokenizer.vocab_size, new)
    if not isinstance(tokenizer, VocabularyTokenizer):
        return SentencePieceTokenizer(splitter)
    table = _with_pieces(tokenizer.table, tokenizer.vocab_size, new)
    return VocabularyTokenizer(table, splitter)


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
