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
    shapes = open_shapes(start)

    def decode(state, fixed, limits, goes_on):
        """Steps of these rows, as long as `goes_on(state)`."""

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

        return tf.while_loop(goes_on, step, [state], shape_invariants=[shapes])[0]

    if num_steps is not None:
        end = decode(start, fixed, limits, _some_live)
        return Hypotheses(end.ids, end.lengths, end.log_probs, end.truncated)

    weights = {name: part for name, part in fixed.items() if name != "source"}

    def decode_and_compact(live, found):
        end = decode(live.state, {**weights, "source": live.source}, live.limits, _most_live)
        ids = tf.pad(
            found.ids,
            [[0, 0], [0, end.index - tf.shape(found.ids)[1]]],
            constant_values=pad_id,
        )
        found = Hypotheses(
            *(
                tf.tensor_scatter_nd_update(whole, live.rows[:, None], part)
                for whole, part in zip(
                    (ids, *found[1:]),
                    (end.ids, end.lengths, end.log_probs, end.truncated),
                    strict=True,
                )
            )
        )
        return live._replace(state=end).only(tf.where(~end.finished)[:, 0]), found

    live = _LiveRows(start, fixed.get("source", {}), limits, tf.range(num_rows))
    found = Hypotheses(start.ids, start.lengths, start.log_probs, start.truncated)
    _, found = tf.while_loop(
        lambda live, found: tf.shape(live.rows)[0] > 0,
        decode_and_compact,
        [live, found],
        shape_invariants=[open_shapes(live), open_shapes(found)],
    )
    # The last step of the longest row found its end and added padding only.
    return found._replace(ids=found.ids[:, : tf.maximum(tf.shape(found.ids)[1] - 1, 0)])


class _LiveRows(NamedTuple):
    """The rows that are still decoded: those that have finished leave the batch."""

    state: _GreedyState
    source: Any  # that part of the cache
    limits: tf.Tensor  # int32 (M,)
    rows: tf.Tensor  # int32 (M,), their places in the whole batch

    def only(self, kept):
        """These rows alone, by their places in the present batch."""

        def gather(structure):
            return tf.nest.map_structure(lambda tensor: tf.gather(tensor, kept), structure)

        state = _GreedyState(self.state.index, *map(gather, self.state[1:]))
        return _LiveRows(state, *map(gather, self[1:]))


def _some_live(state):
    return tf.reduce_any(~state.finished)


def _most_live(state):
    """Whether so many rows are live that to take the others out would cost more than it gains."""
    live = tf.reduce_sum(tf.cast(~state.finished, tf.int32))
    return 4 * live > 3 * tf.shape(state.finished)[0]
