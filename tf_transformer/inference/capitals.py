"""Lower-casing of texts that are mostly in capitals, inside the graph."""

import tensorflow as tf

from tf_transformer.data.noise import MARKUP_SIGNS
from tf_transformer.data.parts import join_rows
from tf_transformer.tokenizers.wordpiece import lower_case_tensor

_LETTER = r"[^\s\p{Z}]"
_MARKUP = rf"{_LETTER}*(?:[{MARKUP_SIGNS}\p{{Nd}}]|{_LETTER}\(){_LETTER}*"


def fold_capitals(text: tf.Tensor, dotless_i: bool | None = None) -> tf.Tensor:
    """Lower the case of those texts, string `(B,)`, that are mostly in capitals.

    A text is mostly in capitals if it has at least four capitals plus three for each other letter,
    if two of its words have capitals, and if one word has two or more. So "NATO", "A B C D" and
    "BMW, VW und ADAC" stay. The letter ß and letters after a number ("5 km") do not count as other
    letters. Words with markup or digits, such as `<BT>`, `de_DE` or `%PRODUCTNAME`, keep their case
    and do not count. I becomes ı if `dotless_i`, or if that is None in a text with İ or ı.
    """
    text = tf.strings.regex_replace(text, "I\u0307", "İ")

    def count(text: tf.Tensor, what_else: str) -> tf.Tensor:
        return tf.strings.length(tf.strings.regex_replace(text, what_else, ""), "UTF8_CHAR")

    plain = tf.strings.regex_replace(text, _MARKUP, "")
    capitals = count(plain, r"\P{Lu}")
    others = count(text, rf"\p{{N}}[\s\p{{Z}}]?\p{{L}}+|{_MARKUP}|[\p{{Lu}}ß]|\P{{L}}")
    are_most = capitals >= 4 + 3 * others
    for words in (r"\p{Lu}.*[\s\p{Z}].*\p{Lu}", r"\p{Lu}[^\s\p{Z}]*\p{Lu}"):
        are_most &= tf.strings.regex_full_match(plain, f"(?s).*{words}.*")
    is_dotless = dotless_i
    if dotless_i is None:
        is_dotless = tf.strings.regex_full_match(text, r"(?s).*[ıİ].*")
    dotted = tf.where(is_dotless, tf.strings.regex_replace(text, "I", "ı"), text)
    kept, words = tf.strings.split(text, " "), tf.strings.split(dotted, " ")
    is_markup = tf.strings.regex_full_match(kept.flat_values, f"(?s).*{_MARKUP}.*")
    # Without the dot that Unicode would put on the small i of İ.
    lower = lower_case_tensor(tf.strings.regex_replace(words.flat_values, "İ", "i"))
    folded = tf.where(is_markup, kept.flat_values, lower)
    folded = join_rows(words.with_flat_values(folded), " ")
    return tf.where(are_most, folded, text)
