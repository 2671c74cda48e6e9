"""The contract between a tokenizer and the graph of a translator."""

import operator
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf


@runtime_checkable
class GraphTokenizer(Protocol):
    """A tokenizer that runs inside the graph of a translator.

    The batches of training need a second face, `data.tokenized_text.Tokenizer`: `encode`, which
    turns texts into ids outside of the graph, and `model`, bytes that identify the tokenizer in a
    cache of token ids. Both faces must give the same ids.

    With a method `subwords(ids)`, which returns a list of str, a sentence that is too long for the
    model is split between words (those that begin with `▁`), and anywhere without.

    Attributes:
        vocab_size: Number of tokens, V.
        pad_id: Token id of padding; the same for source and target, and that of the model.
        bos_id: Token id that begins the decoder's input.
        eos_id: Token id that ends a sentence.
        graph_resource: What a module must track for a SavedModel to hold the tokenizer's tables
            and assets, such as a `tf.lookup.StaticHashTable` or a layer; None if there are none.

    A tokenizer may have `id_to_string(ids)` too, from int32 ids `(B, None)` to the subwords, string
    `(B, None)`, both ragged. Without it a translator has no `align`.
    """

    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    graph_resource: Any

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts texts, string `(B,)`, to int32 ids `(B, None)`, without begin and end ids."""
        ...

    def detokenize(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Converts int32 ids `(B, None)`, without special ids, to texts, string `(B,)`."""
        ...


def has_subwords(tokenizer: GraphTokenizer) -> bool:
    """Whether a tokenizer has the optional `id_to_string`."""
    return callable(getattr(tokenizer, "id_to_string", None))


def require_tokenizer(tokenizer: Any) -> None:
    """Raises unless `tokenizer` has what `GraphTokenizer` asks for.

    Raises:
        TypeError: `tokenizer` is a class, lacks an attribute or a method, or a number is no int.
        ValueError: A special id is outside the vocabulary, or padding and end share an id.
    """
    if isinstance(tokenizer, type):
        raise TypeError(f"tokenizer must be an instance; received the class {tokenizer.__name__}.")
    kind = type(tokenizer).__name__
    for method in ("tokenize", "detokenize"):
        if not callable(getattr(tokenizer, method, None)):
            raise TypeError(f"a tokenizer needs the method {method}; {kind} has none.")
    special_ids = ("pad_id", "bos_id", "eos_id")
    for attribute in ("graph_resource", "vocab_size", *special_ids):
        if not hasattr(tokenizer, attribute):
            raise TypeError(f"a tokenizer needs the attribute {attribute}; {kind} has none.")
    for name in ("vocab_size", *special_ids):
        value = getattr(tokenizer, name)
        try:
            operator.index(value)
        except TypeError:
            raise TypeError(f"{kind}.{name} must be an int; received {value!r}.") from None
    for name in special_ids:
        value = getattr(tokenizer, name)
        if not 0 <= value < tokenizer.vocab_size:
            raise ValueError(
                f"{kind}.{name} must be an id of its vocabulary, from 0 to "
                f"{tokenizer.vocab_size - 1}; received {name}={value}."
            )
    if tokenizer.pad_id == tokenizer.eos_id:
        raise ValueError(
            f"{kind}.pad_id and {kind}.eos_id are both {tokenizer.pad_id}; use two ids, for "
            f"padding follows the end of a sentence."
        )
