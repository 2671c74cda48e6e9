"""Texts to token ids, in the graph of a translator."""

import tensorflow as tf

from tf_transformer.data.noise import TAG_SIGNS
from tf_transformer.tokenizers import GraphTokenizer

_TAG = f"(?s).*[{TAG_SIGNS}].*"


def valid_utf8(text: tf.Tensor) -> tf.Tensor:
    """Replaces bytes that are not UTF-8 by U+FFFD in texts, string `(B,)`."""
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


def lower_case(text: tf.Tensor) -> tf.Tensor:
    """Lowers the case of texts, string `(B,)`, independent of the locale of the process."""
    text = tf.strings.lower(text)  # of ASCII
    # ICU has other small letters for these in Turkish and Lithuanian.
    for capital in "İÌÍĨĮ":
        text = tf.strings.regex_replace(text, capital, capital.lower())
    return tf.strings.lower(text, "utf-8")


def fold_capitals(text: tf.Tensor) -> tf.Tensor:
    """Lowers the case of those texts, string `(B,)`, that are mostly in capitals.

    Such a text has at least four capitals, and three more for each other letter, in at least two
    words, one of which has two. So "NATO", "A B C D" and "BMW, VW und ADAC" stay. Letters without
    capitals do not count: ß, and the letters after a number ("5 km"). Tags such as `<BT>` or
    `de_DE` stay.
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


class TextReader:
    """Reads texts, valid UTF-8, as token ids. A text without a visible character has no tokens.

    Args:
        tokenizer: The tokenizer of a side of the model.
        max_length: Tokens of a text, the end included.
        folds_capitals: Whether to apply `fold_capitals`.
    """

    def __init__(
        self, tokenizer: GraphTokenizer, max_length: int, folds_capitals: bool = False
    ) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = max_length - 1
        self._folds_capitals = folds_capitals

    def all_tokens(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns int32 ids `(B, None)` of texts, string `(B,)`."""
        text = tf.where(tf.strings.regex_full_match(text, r"[\p{Z}\p{Cc}\p{Cf}]*"), "", text)
        return self.tokenizer.tokenize(fold_capitals(text) if self._folds_capitals else text)

    def first_tokens(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Returns ids `(B, None)` that leave space for the end, and whether more were dropped."""
        tokens = self.all_tokens(text)
        return tokens[:, : self.max_tokens], tokens.row_lengths() > self.max_tokens

    def with_end(self, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
        """Appends the end token to rows of ids."""
        return tf.concat([tokens, tf.fill([tokens.nrows(), 1], self.tokenizer.eos_id)], axis=1)

    def padded(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        """Pads rows of ids to int32 `(B, S)`."""
        return tokens.to_tensor(self.tokenizer.pad_id)
