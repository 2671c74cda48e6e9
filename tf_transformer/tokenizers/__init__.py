"""Tokenizers: text to token ids and back, inside the TensorFlow graph."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.tokenizers.vocabulary import TABLE, VocabularyTokenizer
from tf_transformer.tokenizers.wordpiece import WordPieceTokenizer


class GraphTokenizer(Protocol):
    """The interface of a tokenizer for training and for the graph of a translator.

    One more method, `id_to_string(ids)`, is optional. It converts int32 ids `(B, None)` to
    subwords, string `(B, None)`, both ragged. A translator has `align` only with this method.

    Attributes:
        model: Bytes that identify the tokenizer in a cache of token ids; only for training.
        vocab_size: Number of tokens, V.
        pad_id: Token id of padding; source, target and model must have the same.
        bos_id: Token id that begins the decoder's input.
        eos_id: Token id that ends a sentence; of a source it may be `pad_id`, which is not read.
        unk_id: Optional; `Search(allow_unknown=False)` and masked language models need it.
        mark_ids: Optional `MarkIds`, the ids of marks, without which placeholders are text.
        graph_resource: The object that a module must track so that a SavedModel holds its tables
            and assets, such as a `tf.lookup.StaticHashTable` or a layer; None if there are none.
    """

    model: bytes
    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    graph_resource: Any

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without begin and end ids; only for training."""

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert texts, string `(B,)`, to int32 ids `(B, None)`, the same ids as `encode`."""

    def detokenize(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Convert int32 ids `(B, None)`, without special ids, to texts, string `(B,)`."""


def load_tokenizer(path: str | os.PathLike[str]) -> GraphTokenizer:
    """Read the tokenizer that was saved as `path`, of the class that saved it."""
    path = pathlib.Path(path)
    if path.with_suffix(TABLE).exists():
        return VocabularyTokenizer.load(path)
    is_json = path.read_bytes().startswith(b"{")  # which begins no SentencePiece model
    return (WordPieceTokenizer if is_json else SentencePieceTokenizer).load(path)


def is_token(tokenizer: GraphTokenizer, word: str) -> bool:
    """Return whether a word in front of a text, such as a tag, is read as one token."""
    (ids,) = tokenizer.encode([f"{word} a"])
    return tokenizer.unk_id not in ids and word in tokenizer.subwords(ids)
