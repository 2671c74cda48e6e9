"""Conversion of texts to token ids in the graph of a translator."""

import tensorflow as tf

from tf_transformer.inference.capitals import fold_capitals
from tf_transformer.tokenizers import GraphTokenizer


def valid_utf8(text: tf.Tensor) -> tf.Tensor:
    """Replace bytes that are not UTF-8 by U+FFFD in texts, string `(B,)`."""
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


def valid_pairs(one: tf.Tensor, other: tf.Tensor, what: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Return two columns of texts as valid UTF-8; they must be equally long.

    Otherwise one text would be broadcast against many, and give numbers instead of an error.
    """
    message = f"{what} must have equally many texts"
    same = tf.debugging.assert_equal(tf.size(one), tf.size(other), message)
    with tf.control_dependencies([] if same is None else [same]):
        return valid_utf8(one), valid_utf8(other)


class TextReader:
    """A reader of valid UTF-8 texts as token ids; a text without visible characters has none.

    `max_length` limits the ids of `first_tokens`, counting the end that `with_end` appends, and
    `tag` stands in front of every text that has visible characters. Its tokens are the first
    `tag_length` ones.
    """

    def __init__(
        self,
        tokenizer: GraphTokenizer,
        max_length: int,
        folds_capitals: bool = False,
        tag: str = "",
        dotless_i: bool | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = max_length - 1
        self._folds_capitals, self._dotless_i = folds_capitals, dotless_i
        self._tag = tag
        self.tag_length = len(tokenizer.tokenize(tf.constant([tag]))[0]) if tag else 0

    def all_tokens(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Return int32 ids `(B, None)` of texts, string `(B,)`."""
        text = tf.where(tf.strings.regex_full_match(text, r"[\p{Z}\p{Cc}\p{Cf}]*"), "", text)
        text = fold_capitals(text, self._dotless_i) if self._folds_capitals else text
        if self._tag:
            text = tf.where(text == "", "", tf.strings.join([self._tag, text], " "))
        return self.tokenizer.tokenize(text)

    def first_tokens(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Return ids `(B, None)`, cut to leave room for the end, and whether any were dropped."""
        tokens = self.all_tokens(text)
        return tokens[:, : self.max_tokens], tokens.row_lengths() > self.max_tokens

    def with_end(self, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
        """Append the end token to rows of ids."""
        return tf.concat([tokens, tf.fill([tokens.nrows(), 1], self.tokenizer.eos_id)], axis=1)

    def padded(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        """Pad rows of ids to int32 `(B, S)`."""
        return tokens.to_tensor(self.tokenizer.pad_id)
