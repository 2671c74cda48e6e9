"""Greedy search: the most probable token, again and again."""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.decoding.cache import append_ids, empty_ids, open_shapes, split_cache
from tf_transformer.decoding.hypotheses import Hypotheses


class _GreedyState(NamedTuple):
    index: tf.Tensor  # int32 (), position of token_ids
    token_ids: tf.Tensor  # int32 (N,), the last token of each row
    finished: tf.Tensor  # bool (N,)
    truncated: tf.Tensor  # bool (N,)
    lengths: tf.Tensor  # int32 (N,)
    log_probs: tf.Tensor  # float32 (N,)
    ids: tf.Tensor  # int32 (N, T), T is index where it grows
    cache: Any  # the parts that change


def greedy_search(decode_step, cache, limits, *, pad_id, bos_id, eos_id, num_steps=None):
    """Decodes with a step function; works for any model that has one.

    Args:
        decode_step: `(token_ids (N,), index, cache) -> (logits (N, V), cache)`.
        cache: what the model's `start_decoding` returned.
        limits: int32 `(N,)`, ids a row may have, the end id not counted.
        pad_id, bos_id, eos_id: int.
        num_steps: int or int scalar tensor, more than the largest limit, where everything has
            its full size from the start, as XLA needs it; None where it grows by what each step
            adds. `start_decoding` must have been told the same.

    Returns:
        `Hypotheses` of N rows.
    """

    def step(state):
        logits, cache = decode_step(state.token_ids, state.index, {**fixed, **state.cache})
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        log_probs = tf.reduce_max(logits, axis=-1) - tf.reduce_logsumexp(logits, axis=-1)
        ended = ~state.finished & (best == eos_id)
        # A row at its limit may still end by itself; anything else there is cut off.
        cut = ~state.finished & ~ended & (state.index >= limits)
        emitted = ~state.finished & ~ended & ~cut
        token_ids = tf.where(emitted, best, pad_id)
        state = _GreedyState(
            index=state.index + 1,
            token_ids=token_ids,
            finished=~emitted,
            truncated=state.truncated | cut,
            lengths=state.lengths + tf.cast(emitted, tf.int32),
            log_probs=state.log_probs + tf.where(emitted | ended, log_probs, 0.0),
            ids=append_ids(state.ids, token_ids, state.index, num_steps),
            cache=split_cache(cache)[1],
        )
        return (state,)

    fixed, moving = split_cache(cache)
    num_rows = tf.shape(limits)[0]
    nothing = tf.zeros([num_rows], tf.bool)
    start = _GreedyState(
        index=tf.constant(0),
        token_ids=tf.fill([num_rows], bos_id),
        finished=nothing,
        truncated=nothing,
        lengths=tf.zeros([num_rows], tf.int32),
        log_probs=tf.zeros([num_rows]),
        ids=empty_ids([num_rows], num_steps, pad_id),
        cache=moving,
    )
    (end,) = tf.while_loop(
        lambda state: tf.reduce_any(~state.finished),
        step,
        [start],
        shape_invariants=[open_shapes(start)],
    )
    # The last step of the longest row found its end and added padding only.
    ids = end.ids
    if num_steps is None:
        ids = ids[:, : tf.maximum(end.index - 1, 0)]
    return Hypotheses(ids, end.lengths, end.log_probs, end.truncated)
