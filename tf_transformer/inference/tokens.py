"""Texts to token ids, in the graph of a translator."""

import tensorflow as tf

from tf_transformer.tokenizers.contract import GraphTokenizer


def valid_utf8(text: tf.Tensor) -> tf.Tensor:
    """Texts, string `(B,)`, in which bytes that are not UTF-8 are U+FFFD: one harms no other."""
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


def fold_capitals(text: tf.Tensor) -> tf.Tensor:
    """Texts, string `(B,)`, of which those all in capitals are in small letters.

    All in capitals is a text without a small letter and with two words of two capitals or more, so
    that "NATO" and "A B C" stay.
    """
    has_small = tf.strings.regex_full_match(text, r"(?s).*\p{Ll}.*")
    has_words = tf.strings.regex_full_match(text, r"(?s).*\p{Lu}{2}.*[\s\p{Z}].*\p{Lu}{2}.*")
    return tf.where(has_words & ~has_small, tf.strings.lower(text, "utf-8"), text)


class FoldingTokenizer:
    """The tokenizer of a source whose capitals are folded, see `fold_capitals`.

    Args:
        tokenizer: The tokenizer of the model.
    """

    def __init__(self, tokenizer: GraphTokenizer) -> None:
        self._tokenizer = tokenizer
        self.pad_id, self.eos_id = tokenizer.pad_id, tokenizer.eos_id

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Token ids `(B, None)` of texts, string `(B,)`, valid UTF-8."""
        return self._tokenizer.tokenize(fold_capitals(texts))


def first_tokens(
    text: tf.Tensor, tokenizer: GraphTokenizer, max_length: int
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """The tokens of texts, as many as leave space for the end.

    Args:
        text: string `(B,)`, valid UTF-8.
        tokenizer: The tokenizer.
        max_length: Tokens of a text, the end included.

    Returns:
        int32 ids `(B, None)` without the end, and whether more were dropped, bool `(B,)`.
    """
    tokens = tokenizer.tokenize(text)
    return tokens[:, : max_length - 1], tokens.row_lengths() > max_length - 1


def with_end(tokens: tf.RaggedTensor, eos_id: int) -> tf.RaggedTensor:
    """Token ids `(B, None)` and their end."""
    return tf.concat([tokens, tf.fill([tokens.nrows(), 1], eos_id)], axis=1)
