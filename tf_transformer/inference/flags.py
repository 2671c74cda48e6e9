"""Flags, found inside the graph, tell what a person should look at in a translation."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tf_transformer.data.marks import Marks
from tf_transformer.data.pieces import ICU_FORMS, SIGNS
from tf_transformer.inference.functions import not_inlined
from tf_transformer.tokenizers.wordpiece import lower_case_tensor

_LONGEST_PERIOD = 20  # tokens
_FEWEST_REPEATED = 3  # tokens that are like those one period before
_SEVERAL_LETTERS = 12  # a name or a term has fewer
# Added to both numbers of tokens before they are compared, because short texts vary more.
SMOOTHING = 3


class Usual(NamedTuple):
    """The lengths and the quality that translations of a validation text usually have.

    Attributes:
        ratios: The lowest and the highest usual ratio of target to source tokens.
        chrf: Pairs of a log-probability per token and the chrF of translations that have it, both
            rising.
    """

    ratios: tuple[float, float]
    chrf: tuple[tuple[float, float], ...]


class Found(NamedTuple):
    """Translations, n of each text, and what is known of them."""

    source: tf.Tensor  # string (B,)
    source_lengths: tf.Tensor  # int32 (B,), tokens
    is_lost: tf.Tensor  # bool (B,), whether text of the source was dropped
    is_kept: tf.Tensor  # bool (B,), whether there is nothing to translate
    forced: tf.Tensor  # bool (B, n), see `seem_forced`
    loops: tf.Tensor  # bool (B,), whether a translation was searched again without repetition
    texts: tf.Tensor  # string (B, n)
    ids: tf.Tensor  # int32 (B, n, T)
    lengths: tf.Tensor  # int32 (B, n)
    truncated: tf.Tensor  # bool (B, n)
    exists: tf.Tensor  # bool (B, n), whether the search found it


def has_loop(ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Return whether ids `(N, T)` have a sequence thrice or a token four times in a row; `(N,)`."""
    size = tf.shape(ids)[1]
    periods = tf.range(1, _LONGEST_PERIOD + 1)[:, None]
    before = tf.range(size) - periods  # (P, T)
    is_same = ids[:, None] == tf.gather(ids, tf.maximum(before, 0), axis=1)
    is_same &= (before >= 0) & (tf.range(size) < lengths[:, None, None])
    needed = tf.maximum(2 * periods, _FEWEST_REPEATED)
    # How many of the last `needed` tokens are like those before, at each token.
    count = tf.cumsum(tf.cast(is_same, tf.int32), axis=2)
    start = tf.maximum(tf.range(size) - needed, 0)  # at which nothing is like before itself, or 0
    earlier = tf.gather(count, tf.broadcast_to(start, tf.shape(count)), axis=2, batch_dims=2)
    return tf.reduce_any(count - earlier >= needed, axis=[1, 2])


def flags_of(
    found: Found, marks: Marks, usual: Usual | None, source_loops: Callable[[], tf.Tensor]
) -> tf.Tensor:
    """Return the names of what a person should look at, string `(B, n)`, separated by commas.

    `source_loops` returns which sources repeat themselves, bool `(B,)`.

    - `truncated`: text of the source was dropped, or the translation reached its limit.
    - `piece`: a piece of the source is not in the translation as often, or one was invented.
    - `forced`: marks seem to stand at the end because the model would have ended without them.
    - `loop`: tokens were repeated, so the text was searched once more, or they still are.
    - `copied`: a text of twelve letters or more is as in the source.
    - `empty`: the translation has no text.
    - `length`: the translation is unusually long or short.
    """
    size, n_best = tf.unstack(tf.shape(found.texts))
    ids = tf.reshape(found.ids, [size * n_best, tf.shape(found.ids)[2]])
    loops = tf.reshape(has_loop(ids, tf.reshape(found.lengths, [-1])), [size, n_best])
    text = tf.strings.regex_replace(found.source, SIGNS, "")
    source = text[:, None]
    copied = lower_case_tensor(found.texts) == lower_case_tensor(source)
    letters = tf.strings.regex_replace(source, r"\P{L}", "")
    copied &= tf.strings.length(letters, "UTF8_CHAR") >= _SEVERAL_LETTERS
    has_pieces = marks.has_pieces(found.source)
    in_texts = marks.has_pieces(tf.reshape(found.texts, [-1]))

    @not_inlined
    def differ() -> tf.Tensor:
        return marks.differ(found.source, found.texts)

    @not_inlined
    def repeated() -> tf.Tensor:
        return loops & ~source_loops()[:, None]

    any_piece = tf.reduce_any(has_pieces) | tf.reduce_any(in_texts)
    named = {
        "truncated": found.truncated | found.is_lost[:, None],
        "piece": tf.cond(any_piece, differ, lambda: tf.zeros_like(found.texts, tf.bool)),
        "forced": found.forced,
        "loop": found.loops[:, None] | tf.cond(tf.reduce_any(loops), repeated, lambda: loops),
        "copied": copied,
        "empty": found.lengths == 0,
    }
    if usual is not None:
        lengths = (found.lengths, found.source_lengths[:, None])
        target, of_source = (tf.cast(each + SMOOTHING, tf.float32) for each in lengths)
        low, high = usual.ratios
        named["length"] = (target < low * of_source) | (target > high * of_source)
    # The forms of ICU's messages are copied, too, and need a translation.
    has_forms = tf.strings.regex_full_match(text, rf"(?s).*\{{{ICU_FORMS}.*")
    exists = found.exists & ~(found.is_kept & ~has_forms)[:, None]
    names = [tf.where(value & exists, f",{name}", "") for name, value in named.items()]
    return tf.strings.regex_replace(tf.strings.join(names), "^,", "")


def expected_chrf(log_probs: tf.Tensor, lengths: tf.Tensor, usual: Usual) -> tf.Tensor:
    """Return the chrF to expect of translations, float32 `(B, n)`, from 0 to 100."""
    xs, ys = (tf.constant(column, tf.float32) for column in zip(*usual.chrf, strict=True))
    x = tf.clip_by_value(log_probs / tf.cast(lengths + 1, tf.float32), xs[0], xs[-1])
    right = tf.clip_by_value(tf.searchsorted(xs, tf.reshape(x, [-1])), 1, len(usual.chrf) - 1)
    right = tf.reshape(right, tf.shape(x))
    x0, x1, y0, y1 = (tf.gather(c, right + d) for c in (xs, ys) for d in (-1, 0))
    return y0 + (y1 - y0) * tf.math.divide_no_nan(x - x0, x1 - x0)
