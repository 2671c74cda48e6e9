"""Texts mostly in capitals, which are read as if they were in small letters, inside the graph."""

import tensorflow as tf

from tf_transformer.data.noise import TAG_SIGNS

_TAG = f"(?s).*[{TAG_SIGNS}].*"


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
    is_tag = tf.strings.regex_full_match(words.flat_values, _TAG)
    folded = tf.where(is_tag, words.flat_values, lower_case(words.flat_values))
    folded = tf.strings.reduce_join(words.with_flat_values(folded), -1, separator=" ")
    return tf.where(are_most, folded, text)


def lower_case(text: tf.Tensor) -> tf.Tensor:
    """Lowers the case of texts, string `(B,)`, independent of the locale of the process."""
    text = tf.strings.lower(text)  # of ASCII
    # ICU has other small letters for these in Turkish and Lithuanian.
    for capital in "İÌÍĨĮ":
        text = tf.strings.regex_replace(text, capital, capital.lower())
    return tf.strings.lower(text, "utf-8")
