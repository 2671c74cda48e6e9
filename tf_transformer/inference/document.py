"""Translation of texts sentence by sentence, in the graph and in Python."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_transformer.data.pieces import PIECES
from tf_transformer.inference.results import Translation, joined
from tf_transformer.inference.sentences import BREAK, CJK, Sentences, parts_of

# Translations of rows of token ids: texts, string `(R,)`, and whether each was truncated.
Rows = tuple[tf.Tensor, tf.Tensor]

_ROWS_TOGETHER = 64  # the default batch size of `Translator`
_TEXTS_SPLIT_TOGETHER = 256  # many for each call of the graph, and yet not many read ahead
# Matches two translations, with a NUL between them, that no space separates: the first is empty, or
# begins with CJK text if it has any, and ends with a full-width stop, before any letter but Hangul;
# or both have CJK text where they meet.
_NO_WORD = r"[^\p{L}\p{M}\p{N}]*"
_TOUCH = (
    rf"(?s)\x00.*|(?:[^\p{{L}}]*[{CJK}].*|[^{CJK}]*)(?:[。．！？｡，；：]|[{CJK}]…){_NO_WORD}"
    r"\x00[^\p{L}]*(?:[^\P{L}\p{Hangul}].*)?"
    rf"|.*[{CJK}]{_NO_WORD}\x00{_NO_WORD}[{CJK}].*"
)


def translate_sentences(
    found: Sentences,
    tokens: tf.RaggedTensor,
    translate: Callable[[tf.RaggedTensor], Rows],
    limit: int,
    tag_length: int = 0,
    finish: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
) -> dict[str, tf.Tensor]:
    """Translate texts that were split into sentences, and keep their white space.

    `tokens` are the ids of the sentences, int32 `(R, None)`; `translate` is called with at most 64
    rows of these, and `finish` with the translations of all sentences, string `(R,)`. A sentence of
    more than `limit` tokens is translated in chunks, each with the first `tag_length` tokens of the
    sentence.
    """
    before, sentences, after = found
    chunks, sentence_of_chunk = split_long(tokens, limit, tag_length)
    texts, truncated = in_groups(chunks, translate)
    # Empty translations would leave two spaces.
    mask = texts != ""
    translations = finish(_joined(texts[mask], sentence_of_chunk[mask], tokens.nrows()))

    text_of_sentence, num_texts = sentences.value_rowids(), sentences.nrows()
    truncated = tf.math.unsorted_segment_max(
        tf.cast(truncated, tf.int32), tf.gather(text_of_sentence, sentence_of_chunk), num_texts
    )
    joined = _joined(translations, text_of_sentence, num_texts, after.flat_values)
    return {
        "translation": before + joined,
        "sentences": sentences.to_tensor(""),
        "sentence_translations": sentences.with_flat_values(translations).to_tensor(""),
        "truncated": truncated > 0,
    }


def between(translations: tf.Tensor, following: tf.Tensor, spaces: tf.Tensor) -> tf.Tensor:
    """Return the separators of translations, given the white space between their sentences."""
    # Chinese and Japanese have no space between sentences, but lines and columns stay apart.
    touch = tf.strings.regex_full_match(tf.strings.join([translations, following], "\0"), _TOUCH)
    apart = tf.strings.regex_full_match(spaces, rf"(?s).*(?:\t|{BREAK}).*")
    return tf.where(touch & ~apart, "", tf.where(tf.equal(spaces, ""), " ", spaces))


def _joined(texts: tf.Tensor, rows: Any, num_rows: Any, spaces: Any = "") -> tf.Tensor:
    """Join the texts `(R,)` of each row, given the white space after each."""
    following, next_row = (tf.concat([x, [end]], 0)[1:] for x, end in ((texts, ""), (rows, -1)))
    ended = texts + tf.where(next_row == rows, between(texts, following, spaces), spaces)
    return tf.strings.unsorted_segment_join(ended, rows, num_rows)


def split_long(
    tokens: tf.RaggedTensor, limit: int, tag_length: int = 0
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Split rows `(R, None)` of more than `limit` tokens into chunks of similar length.

    Each chunk begins with the first `tag_length` tokens of its row.

    Returns:
        The chunks in order, int32 `(C, None)`, and the index of the row of each chunk, int64
        `(C,)`. A row without tokens becomes one empty chunk.
    """
    if tag_length:
        chunks, row = split_long(tokens[:, tag_length:], max(1, limit - tag_length))
        return tf.concat([tf.gather(tokens[:, :tag_length], row), chunks], axis=1), row
    lengths = tokens.row_lengths()
    num_chunks = tf.maximum(-(-lengths // limit), 1)
    size = -(-lengths // num_chunks)
    row = tf.repeat(tf.range(tokens.nrows()), num_chunks)
    rank = tf.range(tf.size(row, tf.int64)) - tf.gather(tf.cumsum(num_chunks, exclusive=True), row)
    starts = tf.gather(tokens.row_starts(), row) + rank * tf.gather(size, row)
    return tf.RaggedTensor.from_row_starts(tokens.flat_values, starts, validate=False), row


def in_groups(rows: tf.RaggedTensor, translate: Callable[[tf.RaggedTensor], Rows]) -> Rows:
    """Translate rows in groups of at most 64 rows of similar length, to bound the memory."""
    order = tf.argsort(rows.row_lengths(), direction="DESCENDING", stable=True)
    num_groups = -(-tf.size(order) // _ROWS_TOGETHER)

    def step(index: tf.Tensor, texts: tf.TensorArray, truncated: tf.TensorArray) -> tuple:
        start = index * _ROWS_TOGETHER
        found = translate(tf.gather(rows, order[start : start + _ROWS_TOGETHER]))
        return index + 1, texts.write(index, found[0]), truncated.write(index, found[1])

    arrays = [
        tf.TensorArray(dtype, num_groups, infer_shape=False, element_shape=[None])
        for dtype in (tf.string, tf.bool)
    ]
    _, *arrays = tf.while_loop(
        lambda index, *_: index < num_groups, step, [0, *arrays], parallel_iterations=1
    )
    back = tf.math.invert_permutation(order)
    return tuple(tf.gather(array.concat(), back) for array in arrays)


def in_sentences(
    texts: Iterator[str],
    translate: Callable[[Iterator[str]], Iterator[list[Translation]]],
    within_lines: bool = True,
    pieces: str = PIECES,
) -> Iterator[list[Translation]]:
    """Translate texts sentence by sentence in Python, reading some texts ahead."""
    groups = iter(lambda: list(itertools.islice(texts, _TEXTS_SPLIT_TOGETHER)), [])
    layouts = itertools.chain.from_iterable(
        parts_of(group, within_lines, pieces) for group in groups
    )
    # Each sentence has the number of its text before it and its white space after it.
    numbered = ((number, *part) for number, parts in enumerate(layouts) for part in parts)
    numbered, ahead = itertools.tee(numbered)
    found = translate(sentence for _, sentence, _ in ahead)
    pairs = zip(found, numbered, strict=True)
    for _, of_text in itertools.groupby(pairs, key=lambda pair: pair[1][0]):
        parts, spaces = zip(*((best, space) for (best,), (*_, space) in of_text), strict=True)
        text = parts[0].text + spaces[0]
        if len(parts) > 1:
            lines = tf.constant([part.text for part in parts])
            text = _joined(lines, [0] * len(parts), 1, spaces).numpy()[0].decode()
        yield [joined(parts, text)]
