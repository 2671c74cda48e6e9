"""Texts to token ids, in the graph of a translator."""

from typing import Any

import tensorflow as tf

from tf_transformer.data.noise import TAG_SIGNS
from tf_transformer.tokenizers import GraphTokenizer

_TAG = f"(?s).*[{TAG_SIGNS}].*"


def valid_utf8(text: tf.Tensor) -> tf.Tensor:
    """Texts, string `(B,)`, in which bytes that are not UTF-8 are U+FFFD: one harms no other."""
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


def lower_case(text: tf.Tensor) -> tf.Tensor:
    """Texts, string `(B,)`, in small letters, whatever the locale of the process is."""
    text = tf.strings.lower(text)  # of ASCII
    # ICU has other small letters for these in Turkish and Lithuanian.
    for capital in "İÌÍĨĮ":
        text = tf.strings.regex_replace(text, capital, capital.lower())
    return tf.strings.lower(text, "utf-8")


def fold_capitals(text: tf.Tensor) -> tf.Tensor:
    """Texts, string `(B,)`, of which those mostly in capitals are in small letters.

    That is a text with at least four capitals, and three more for each other letter, in at least
    two words, one of which has two. So "NATO", "A B C D" and "BMW, VW und ADAC" stay. What has no
    capitals does not count: ß, and the letters after a number ("5 km"). Tags such as `<BT>` or
    `de_DE` stay as they are.
    """

    def count(what_else):
        return tf.strings.length(tf.strings.regex_replace(text, what_else, ""), "UTF8_CHAR")

    capitals, others = count(r"\P{Lu}"), count(r"\p{N}[\s\p{Z}]?\p{L}+|[\p{Lu}ß]|\P{L}")
    are_most = capitals >= 4 + 3 * others
    for words in (r"\p{Lu}.*[\s\p{Z}].*\p{Lu}", r"\p{Lu}[^\s\p{Z}]*\p{Lu}"):
        are_most &= tf.strings.regex_full_match(text, f"(?s).*{words}.*")
    words = tf.strings.split(text, " ")
    small = lower_case(words.flat_values)
    small = tf.where(tf.strings.regex_full_match(words.flat_values, _TAG), words.flat_values, small)
    folded = tf.strings.reduce_join(words.with_flat_values(small), -1, separator=" ")
    return tf.where(are_most, folded, text)


class SourceTokenizer:
    """The tokenizer of a source: a text without a visible character has no tokens.

    Args:
        tokenizer: The tokenizer of the model.
        folds: Whether capitals are folded, see `fold_capitals`.
    """

    def __init__(self, tokenizer: GraphTokenizer, folds: bool) -> None:
        self._tokenizer = tokenizer
        self._folds = folds

    def __getattr__(self, name: str) -> Any:
        """All but `tokenize` is that of the tokenizer."""
        return getattr(self._tokenizer, name)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Token ids `(B, None)` of texts, string `(B,)`, valid UTF-8."""
        is_blank = tf.strings.regex_full_match(texts, r"[\p{Z}\p{Cc}\p{Cf}]*")
        texts = tf.where(is_blank, "", texts)
        return self._tokenizer.tokenize(fold_capitals(texts) if self._folds else texts)


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
