"""Translation of texts sentence by sentence, in the graph and in Python."""

import collections
import itertools
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_transformer.inference.results import Translation
from tf_transformer.inference.sentences import Sentences, parts_of

# Translations of rows of token ids: texts, string `(R,)`, and whether each was truncated.
Rows = tuple[tf.Tensor, tf.Tensor]

_ROWS_TOGETHER = 64
_TEXTS_SPLIT_TOGETHER = 256
# Matches translations that are empty or end in CJK text, after which no space is inserted.
_NO_SPACE_AFTER = (
    r"(?s)(?:.*[\p{Han}\p{Hiragana}\p{Katakana}\x{3000}-\x{303F}\x{FF00}-\x{FFEF}][”’\"]?)?"
)


def translate_sentences(
    found: Sentences,
    tokenize: Callable[[tf.Tensor], tf.RaggedTensor],
    translate: Callable[[tf.RaggedTensor], Rows],
    limit: int,
    tag_length: int = 0,
) -> dict[str, tf.Tensor]:
    """Translate texts that were split into sentences, and keep their white space.

    `tokenize` turns sentences, string `(R,)`, into token ids `(R, None)`; `translate` is called
    with at most 64 rows of these. A sentence of more than `limit` tokens is translated in chunks,
    each with the first `tag_length` tokens of the sentence.
    """
    before, sentences, after = found
    tokens = tokenize(sentences.flat_values)
    chunks, sentence_of_chunk = split_long(tokens, limit, tag_length)
    texts, truncated = in_groups(chunks, translate)
    # Empty translations would leave two spaces.
    mask = texts != ""
    translations = tf.strings.unsorted_segment_join(
        texts[mask], sentence_of_chunk[mask], tokens.nrows(), separator=" "
    )

    text_of_sentence, num_texts = sentences.value_rowids(), sentences.nrows()
    index = tf.range(tf.size(translations, tf.int64))
    is_last = index + 1 == tf.gather(sentences.row_limits(), text_of_sentence)
    spaces = after.flat_values
    ended = translations + tf.where(is_last, spaces, between(translations, spaces))
    truncated = tf.math.unsorted_segment_max(
        tf.cast(truncated, tf.int32), tf.gather(text_of_sentence, sentence_of_chunk), num_texts
    )
    joined = tf.strings.unsorted_segment_join(ended, text_of_sentence, num_texts)
    return {
        "translation": before + joined,
        "sentences": sentences.to_tensor(""),
        "sentence_translations": sentences.with_flat_values(translations).to_tensor(""),
        "truncated": truncated > 0,
    }


def between(translations: tf.Tensor, spaces: tf.Tensor) -> tf.Tensor:
    """Return the separators of translations, given the white space between their sentences."""
    # No space separates Chinese sentences, but only CJK translations may do without one.
    touches = (spaces == "") & ~tf.strings.regex_full_match(translations, _NO_SPACE_AFTER)
    return tf.where(touches, " ", spaces)


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

    def step(index, texts, truncated):
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
) -> Iterator[list[Translation]]:
    """Translate texts sentence by sentence in Python, reading some texts ahead."""
    layouts: collections.deque = collections.deque()

    def sentences():
        while group := list(itertools.islice(texts, _TEXTS_SPLIT_TOGETHER)):
            for parts in parts_of(group, within_lines):
                layouts.append([space for _, space in parts])
                yield from (sentence for sentence, _ in parts)

    found = (best for (best,) in translate(sentences()))
    for first in found:
        *spaces, end = layouts.popleft()
        parts = [first, *itertools.islice(found, len(spaces))]
        pairs = zip(parts, spaces, strict=False)
        spaces = [space or between(part.text, "").numpy().decode() for part, space in pairs]
        text = "".join(part.text + space for part, space in zip(parts, [*spaces, end], strict=True))
        _, *numbers = zip(*parts, strict=True)
        score, log_prob, length, *truncated = map(sum, numbers)
        yield [Translation(text, score, log_prob, length, *map(bool, truncated))]
