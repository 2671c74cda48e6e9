"""Texts of any length: translated sentence by sentence in groups, without dropping anything."""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_transformer.inference.sentences import Sentences, split_sentences
from tf_transformer.tokenizers import GraphTokenizer

_ROWS_TOGETHER = 64
_INSIDE_CHARACTER, _INSIDE_WORD, _WORD_START = range(3)
# A translation after which the next one follows without a space, or an empty one.
_NO_SPACE_AFTER = (
    r"(?s)(?:.*[\p{Han}\p{Hiragana}\p{Katakana}\x{3000}-\x{303F}\x{FF00}-\x{FFEF}][”’\"]?)?"
)


class Rows(NamedTuple):
    """Translations of rows of token ids: `texts`, string `(R,)`, and `truncated`, bool `(R,)`."""

    texts: tf.Tensor
    truncated: tf.Tensor


def translate_documents(
    text: tf.Tensor,
    tokenize: Callable[[tf.Tensor], tf.RaggedTensor],
    translate: Callable[[tf.RaggedTensor], Rows],
    cuts: np.ndarray,
    limit: int,
    split: Callable[[tf.Tensor], Sentences] = split_sentences,
) -> dict[str, tf.Tensor]:
    """Translates texts sentence by sentence and keeps their white space.

    Args:
        text: string `(B,)`.
        tokenize: From sentences, string `(R,)`, to token ids `(R, None)`.
        translate: From at most 64 rows of token ids to their translations.
        cuts: What `cut_table` returns.
        limit: Tokens that a row may have; a longer sentence is translated in chunks.
        split: Finds the sentences.

    Returns:
        The outputs of the signature `translate_document`.
    """
    before, sentences, after = split(text)
    tokens = tokenize(sentences.flat_values)
    chunks, sentence_of_chunk = split_long(tokens, cuts, limit)
    found = in_groups(chunks, translate)
    translations = _joined(found.texts, sentence_of_chunk, tokens.nrows())

    text_of_sentence, num_texts = sentences.value_rowids(), sentences.nrows()
    index = tf.range(tf.size(translations, tf.int64))
    is_last = index + 1 == tf.gather(sentences.row_limits(), text_of_sentence)
    spaces = after.flat_values
    ended = translations + tf.where(is_last, spaces, between(translations, spaces))
    truncated = tf.math.unsorted_segment_max(
        tf.cast(found.truncated, tf.int32),
        tf.gather(text_of_sentence, sentence_of_chunk),
        num_texts,
    )
    joined = tf.strings.unsorted_segment_join(ended, text_of_sentence, num_texts)
    return {
        "translation": before + joined,
        "sentences": sentences.to_tensor(""),
        "sentence_translations": sentences.with_flat_values(translations).to_tensor(""),
        "truncated": truncated > 0,
    }


def between(translations: tf.Tensor, spaces: tf.Tensor) -> tf.Tensor:
    """What separates translations of sentences, given the white space of the sentences."""
    # Chinese sentences touch; their translations should not, unless they are Chinese too.
    touches = (spaces == "") & ~tf.strings.regex_full_match(translations, _NO_SPACE_AFTER)
    return tf.where(touches, " ", spaces)


def cut_table(tokenizer: GraphTokenizer) -> np.ndarray:
    """How well a chunk of tokens can begin with each token of a vocabulary.

    Returns:
        int8 `(V,)`: 2 where a word begins, 1 inside a word, 0 inside a character of several bytes;
        all 1 for a tokenizer without the method `subwords`.
    """
    if not hasattr(tokenizer, "subwords"):
        return np.full(tokenizer.vocab_size, _INSIDE_WORD, np.int8)

    def level(subword):
        if subword.startswith("▁"):
            return _WORD_START
        continues = re.fullmatch("<0x[89AB][0-9A-F]>", subword)
        return _INSIDE_CHARACTER if continues else _INSIDE_WORD

    return np.array([level(s) for s in tokenizer.subwords(range(tokenizer.vocab_size))], np.int8)


def split_long(
    tokens: tf.RaggedTensor, cuts: np.ndarray, limit: int
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Splits sentences of more than `limit` tokens into chunks of like lengths.

    A chunk begins with a word where it can, otherwise with a character, and within a character only
    where that has more than `limit` tokens.

    Args:
        tokens: int32 `(R, None)`.
        cuts: What `cut_table` returns.
        limit: Tokens that a chunk may have, at least 1.

    Returns:
        The chunks in order, int32 `(C, None)`, and the index of each one's sentence, int64 `(C,)`.
        A sentence without tokens is a chunk.
    """
    ends = tokens.row_limits()
    levels = tf.gather(cuts, tokens.flat_values)
    last_word, last_character = (_last(levels >= n) for n in (_WORD_START, _INSIDE_WORD))

    def num_left(starts, rows):
        return tf.gather(ends, rows) - starts

    def is_too_long(all_starts, all_rows, starts, rows):
        return tf.reduce_any(num_left(starts, rows) > limit)

    def begin_next(all_starts, all_rows, starts, rows):
        left = num_left(starts, rows)
        starts, rows, left = (tf.boolean_mask(x, left > limit) for x in (starts, rows, left))
        num_chunks = -(-left // limit)
        farthest = starts - (-left // num_chunks)
        word, character = tf.gather(last_word, farthest), tf.gather(last_character, farthest)
        inside = tf.where(character > starts, character, farthest)
        starts = tf.where(word > starts, word, inside)
        return tf.concat([all_starts, starts], 0), tf.concat([all_rows, rows], 0), starts, rows

    first = (tokens.row_starts(), tf.range(tokens.nrows())) * 2
    starts, rows, _, _ = tf.while_loop(
        is_too_long, begin_next, first, shape_invariants=(tf.TensorShape([None]),) * 4
    )
    order = tf.argsort(starts, stable=True)
    chunks = tf.RaggedTensor.from_row_starts(
        tokens.flat_values, tf.gather(starts, order), validate=False
    )
    return chunks, tf.gather(rows, order)


def _last(flags):
    """For each index the last one up to it whose flag is set, or -1."""
    indices = tf.concat([[-1], tf.where(flags)[:, 0]], 0)
    return tf.gather(indices, tf.cumsum(tf.cast(flags, tf.int32)))


def in_groups(rows: tf.RaggedTensor, translate: Callable[[tf.RaggedTensor], Rows]) -> Rows:
    """Translates rows in groups of at most 64 of like lengths, so that memory is bounded.

    Args:
        rows: int32 `(R, None)`, token ids.
        translate: The translations of a group.
    """
    order = tf.argsort(rows.row_lengths(), direction="DESCENDING", stable=True)
    num_groups = -(-tf.size(order) // _ROWS_TOGETHER)

    def step(index, texts, truncated):
        start = index * _ROWS_TOGETHER
        found = translate(tf.gather(rows, order[start : start + _ROWS_TOGETHER]))
        return index + 1, texts.write(index, found.texts), truncated.write(index, found.truncated)

    arrays = [
        tf.TensorArray(dtype, num_groups, infer_shape=False, element_shape=[None])
        for dtype in (tf.string, tf.bool)
    ]
    _, *arrays = tf.while_loop(
        lambda index, *_: index < num_groups, step, [0, *arrays], parallel_iterations=1
    )
    back = tf.math.invert_permutation(order)
    return Rows(*(tf.gather(array.concat(), back) for array in arrays))


def _joined(texts, sentence_of_chunk, num_sentences):
    """The translations of chunks, joined to those of sentences."""
    # An empty one would leave two spaces, or be lost with its separator.
    mask = texts != ""
    return tf.strings.unsorted_segment_join(
        texts[mask], sentence_of_chunk[mask], num_sentences, separator=" "
    )
