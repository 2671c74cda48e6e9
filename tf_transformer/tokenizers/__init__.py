"""Tokenizers: text to token ids and back, inside the TensorFlow graph."""

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, TokenizerError

__all__ = ["GraphTokenizer", "SentencePieceTokenizer", "TokenizerError"]


class GraphTokenizer(Protocol):
    """What training and the graph of a translator need of a tokenizer.

    With a method `subwords(ids)`, which returns a list of str, a sentence that is too long for the
    model is split between words (those that begin with `▁`). With `id_to_string(ids)`, from int32
    ids `(B, None)` to subwords, string `(B, None)`, both ragged, a translator has `align`.

    Attributes:
        model: Identifies the tokenizer in a cache of token ids; only training needs it.
        vocab_size: Number of tokens, V.
        pad_id: Token id of padding; the same for source and target, and that of the model.
        bos_id: Token id that begins the decoder's input.
        eos_id: Token id that ends a sentence.
        graph_resource: What a module must track for a SavedModel to hold the tokenizer's tables
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
        """Convert texts, string `(B,)`, to int32 ids `(B, None)`, those of `encode`."""

    def detokenize(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Convert int32 ids `(B, None)`, without special ids, to texts, string `(B,)`."""
