"""Greedy search: the most probable token, again and again."""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.decoding.cache import append_ids, empty_ids, open_shapes, split_cache
from tf_transformer.decoding.compaction import decode_live, some_live
from tf_transformer.decoding.hypotheses import Hypotheses


class _GreedyState(NamedTuple):
    index: tf.Tensor  # int32 (), position of token_ids
    token_ids: tf.Tensor  # int32 (N,), the last token of each row
    done: tf.Tensor  # bool (N,)
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
    fixed, moving = split_cache(cache)
    num_rows = tf.shape(limits)[0]
    nothing = tf.zeros([num_rows], tf.bool)
    start = _GreedyState(
        index=tf.constant(0),
        token_ids=tf.fill([num_rows], bos_id),
        done=nothing,
        truncated=nothing,
        lengths=tf.zeros([num_rows], tf.int32),
        log_probs=tf.zeros([num_rows]),
        ids=empty_ids([num_rows], num_steps, pad_id),
        cache=moving,
    )
    shapes = open_shapes(start)

    def decode(state, fixed, limits, goes_on):
        """Steps of these rows, as long as `goes_on(state)`."""

        def step(state):
            logits, cache = decode_step(state.token_ids, state.index, {**fixed, **state.cache})
            best = tf.argmax(logits, axis=-1, output_type=tf.int32)
            log_probs = tf.reduce_max(logits, axis=-1) - tf.reduce_logsumexp(logits, axis=-1)
            ended = ~state.done & (best == eos_id)
            # A row at its limit may still end by itself; anything else there is cut off.
            cut = ~state.done & ~ended & (state.index >= limits)
            emitted = ~state.done & ~ended & ~cut
            token_ids = tf.where(emitted, best, pad_id)
            state = _GreedyState(
                index=state.index + 1,
                token_ids=token_ids,
                done=~emitted,
                truncated=state.truncated | cut,
                lengths=state.lengths + tf.cast(emitted, tf.int32),
                log_probs=state.log_probs + tf.where(emitted | ended, log_probs, 0.0),
                ids=append_ids(state.ids, token_ids, state.index, num_steps),
                cache=split_cache(cache)[1],
            )
            return (state,)

        return tf.while_loop(goes_on, step, [state], shape_invariants=[shapes])[0]

    if num_steps is not None:
        return _hypotheses(decode(start, fixed, limits, some_live))
    found = decode_live(
        decode, lambda state, limits: _hypotheses(state), start, fixed, limits, pad_id
    )
    # The last step of the longest row found its end and added padding only.
    return found._replace(ids=found.ids[:, : tf.maximum(tf.shape(found.ids)[1] - 1, 0)])


def _hypotheses(state):
    return Hypotheses(state.ids, state.lengths, state.log_probs, state.truncated)
