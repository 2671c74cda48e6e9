"""Lower-casing of texts that are mostly in capitals, inside the graph."""

import tensorflow as tf

from tf_transformer.data.noise import TAG_SIGNS
from tf_transformer.tokenizers.wordpiece import lower_case

_TAG = f"(?s).*[{TAG_SIGNS}].*"


def fold_capitals(text: tf.Tensor) -> tf.Tensor:
    """Lower the case of those texts, string `(B,)`, that are mostly in capitals.

    A text is mostly in capitals if it has at least four capitals plus three for each other letter,
    if two of its words have capitals, and if one word has two or more. So "NATO", "A B C D" and
    "BMW, VW und ADAC" stay. The letter ß and letters after a number ("5 km") do not count as other
    letters. Tags such as `<BT>` or `de_DE` keep their case.
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
