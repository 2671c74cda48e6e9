"""Terms of a glossary, put into texts as pieces that a translation keeps."""

import tensorflow as tf
import tensorflow_text

from tf_transformer.data.marks import Marks
from tf_transformer.data.parts import CUT, Parts
from tf_transformer.data.pieces import SOUTHEAST_ASIAN, VERBATIM
from tf_transformer.inference.sentences import CJK
from tf_transformer.inference.text_reader import valid_pairs
from tf_transformer.tokenizers.marks import RESERVED_PATTERN
from tf_transformer.tokenizers.wordpiece import lower_case_tensor

_TERM = r"[^\t]*[^\s\p{Z}][^\t]*"
_NO_TEXT = f"{RESERVED_PATTERN}|^\ufeff"  # marks, and a byte order mark
# With the soft hyphen, the joiners and the non-joiner, which are inside of words.
_WORD = r"[\p{L}\p{M}\p{N}\x{AD}\x{200C}\x{200D}\x{2060}]+"
_BEGIN, _END = "\uf5c2", "\uf5c3"  # around each word, so that a term is found as whole words


def insert_terms(text: tf.Tensor, terms: tf.Tensor, marks: Marks) -> tf.Tensor:
    """Replace terms in texts by their translations, as pieces that a search may not change.

    Longer terms come first. A term in small letters is found in any case. No term is found inside
    a piece of the text, such as an address.

    Args:
        text: string `(B,)`.
        terms: string `(B,)`, lines of `source TAB target` for each text. Further columns, other
            lines, and a second line for the same source are ignored.
        marks: The marks of the model.
    """
    text, terms = valid_pairs(text, terms, "text and terms")
    glossaries, index = tf.unique(terms)

    def step(number: tf.Tensor, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.where(index == number)
        found = _with_glossary(tf.gather_nd(texts, rows), glossaries[number], marks)
        return number + 1, tf.tensor_scatter_nd_update(texts, rows, found)

    return tf.while_loop(lambda number, _: number < tf.size(glossaries), step, [0, text])[1]


def _with_glossary(text: tf.Tensor, glossary: tf.Tensor, marks: Marks) -> tf.Tensor:
    lines = tf.strings.regex_replace(tf.strings.split(glossary, "\n"), _NO_TEXT, "")
    columns = tf.strings.split(lines, "\t")
    is_term = tf.strings.regex_full_match(lines, rf"{_TERM}\t{_TERM}(?:\t.*)?")
    columns = tf.ragged.boolean_mask(columns, is_term)[:, :2].to_tensor("", shape=[None, 2])
    sources, targets = (tf.strings.strip(column) for column in tf.unstack(columns, axis=1))
    sources = tf.strings.regex_replace(sources, r"[\s\p{Z}]+", " ")
    # Texts have é as one character or, from some file systems, as two.
    forms = [tensorflow_text.normalize_utf8(sources, form) for form in ("NFC", "NFD")]
    are_other = [form != sources for form in forms]
    targets = tf.concat([targets, *(tf.boolean_mask(targets, other) for other in are_other)], 0)
    sources = tf.concat([sources, *map(tf.boolean_mask, forms, are_other)], 0)
    # A regular expression of ten thousand terms would be too large.
    first_words = tf.strings.regex_replace(tf.strings.strip(_words(sources)), " .*", "")
    in_text = tf.unique(tf.concat([tf.strings.split(_words(text)).flat_values, [""]], 0))[0]
    may_occur = tf.reduce_any(first_words[:, None] == in_text, axis=1)
    sources, targets = (tf.boolean_mask(side, may_occur) for side in (sources, targets))
    order = tf.argsort(tf.strings.length(sources), direction="DESCENDING", stable=True)
    sources, targets = tf.gather(sources, order), tf.gather(targets, order)

    def replaced() -> tf.Tensor:
        parts = marks.split(text)
        with_terms = _with_terms(parts.flat, sources, targets)
        return parts.joined(tf.where(parts.is_piece, parts.flat, with_terms))

    return tf.cond(tf.size(sources) > 0, replaced, lambda: text)


def _with_terms(text: tf.Tensor, sources: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Put the targets of terms in the place of their sources, from the longest to the shortest."""
    lower = lower_case_tensor(sources)
    pattern = tf.strings.regex_replace(_in_words(sources), r"([!-/:-@\[-`{-~])", r"\\\1")
    pattern = tf.strings.regex_replace(pattern, r"[\s\p{Z}]+", r"[\\s\\p{Z}]+")
    pattern = tf.where(lower == sources, tf.strings.join(["(?i:", pattern, ")"]), pattern)
    pattern = tf.strings.join(["(", tf.strings.reduce_join(pattern, separator="|"), ")"])
    cut = tf.raw_ops.RegexReplace(
        input=_in_words(text), pattern=pattern, rewrite=CUT + rb"\1" + CUT, replace_global=True
    )
    parts = Parts(tf.strings.split(tf.strings.regex_replace(cut, f"[{_BEGIN}{_END}]", ""), CUT))
    spaced = tf.strings.regex_replace(parts.flat, r"[\s\p{Z}]+", " ")
    is_term = (spaced[:, None] == sources) | (lower_case_tensor(spaced)[:, None] == sources)
    begin, end = VERBATIM
    target = tf.strings.join([begin, tf.gather(targets, tf.argmax(is_term, axis=1)), end])
    is_found = parts.is_piece & tf.reduce_any(is_term, axis=1)
    return parts.joined(tf.where(is_found, target, parts.flat))


def _words(text: tf.Tensor) -> tf.Tensor:
    """Return the words of texts in small letters, with spaces between them."""
    text = lower_case_tensor(_in_words(text))
    return tf.strings.regex_replace(text, rf"[^{_WORD[1:]}", " ")


def _in_words(text: tf.Tensor) -> tf.Tensor:
    """Put signs around each word, and around each character of scripts without spaces."""
    unspaced = rf"([{CJK}{SOUTHEAST_ASIAN}]\p{{M}}*)"
    text = tf.strings.regex_replace(text, unspaced, rf"{_BEGIN}\1{_END}")
    # Words that are joined by underscores are one, such as the name of a file.
    return tf.strings.regex_replace(text, f"({_WORD}(?:_+{_WORD})*)", rf"{_BEGIN}\1{_END}")
