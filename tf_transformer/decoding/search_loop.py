"""Compaction: finished sentences are removed from the batch, so that steps do not compute them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf


class _Batch(NamedTuple):
    """The M sentences that are still decoded."""

    state: Any  # as in `run_search`
    source: Any  # the part `"source"` of the cache
    limits: tf.Tensor  # int32 (M,)
    indices: tf.Tensor  # int32 (M,), positions of these sentences in the whole batch

    def select(self, kept: tf.Tensor, beam_size: int | tf.Tensor) -> "_Batch":
        """Return the batch of the sentences with the indices `kept`, int64 `(L,)`."""

        def gather(structure: Any, indices: tf.Tensor) -> Any:
            return tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), structure)

        beams = tf.range(beam_size, dtype=kept.dtype)
        hypotheses = tf.reshape(kept[:, None] * tf.cast(beam_size, kept.dtype) + beams, [-1])
        cache, source = gather((self.state.cache, self.source), hypotheses)
        state = gather(self.state._replace(index=(), cache=()), kept)  # `()` has no tensors
        state = state._replace(index=self.state.index, cache=cache)
        return _Batch(state, source, *gather(self[2:], kept))


def run_search(
    make_step: Callable,
    results_of: Callable,
    state: Any,
    source: Any,
    limits: tf.Tensor,
    pad_id: int,
    beam_size: int | tf.Tensor = 1,
) -> tuple[tf.Tensor, ...]:
    """Run a search, and remove sentences from the batch once they are done.

    Args:
        make_step: `(source, limits) -> step`, where `step(state)` returns the next state.
        results_of: `(state, limits) -> tuple` of tensors `(B, …)`: the ids `(B, …, T)`, the
            lengths, and others. Results of unfinished sentences are overwritten later.
        state: NamedTuple with `index ()`, `done (B,)`, `cache` (the part `"target"`), and
            any other tensors `(B, …)`.
        source: The part `"source"` of the cache.

    Returns:
        The results of all sentences. T is the longest length.
    """
    shapes = _open_shapes(state)

    def decode_and_compact(batch: _Batch, results: tuple) -> tuple[_Batch, tuple]:
        step = make_step(batch.source, batch.limits)
        most_done = (tf.shape(batch.limits)[0] + 3) // 4  # so many sentences are removed at a time

        def condition(state: Any) -> tf.Tensor:
            return tf.reduce_sum(tf.cast(state.done, tf.int32)) < most_done

        (end,) = tf.while_loop(condition, lambda s: (step(s),), [batch.state], [shapes])
        # Earlier results have shorter ids, because fewer steps had run.
        old_ids = results[0]
        growth = end.index - tf.shape(old_ids)[-1]
        paddings = [[0, 0]] * (len(old_ids.shape) - 1) + [[0, growth]]
        ids = tf.pad(old_ids, paddings, constant_values=pad_id)
        results = tuple(
            tf.tensor_scatter_nd_update(old, batch.indices[:, None], new)
            for old, new in zip((ids, *results[1:]), results_of(end, batch.limits), strict=True)
        )
        return batch._replace(state=end).select(tf.where(~end.done)[:, 0], beam_size), results

    batch = _Batch(state, source, limits, tf.range(tf.shape(limits)[0]))
    results = tuple(results_of(state, limits))
    ids, lengths, *others = tf.while_loop(
        lambda batch, results: tf.shape(batch.indices)[0] > 0,
        decode_and_compact,
        [batch, results],
        shape_invariants=[_open_shapes(batch), _open_shapes(results)],
    )[1]
    longest = tf.reduce_max(tf.pad(tf.reshape(lengths, [-1]), [[1, 0]]))
    return ids[..., :longest], lengths, *others


def _open_shapes(structure: Any) -> Any:
    """Return the shape invariants of a loop; the first axis and axes of size 0 are open."""

    def open_shape(tensor: tf.Tensor) -> tf.TensorShape:
        sizes = tensor.shape.as_list()
        return tf.TensorShape(
            [None if axis == 0 or size == 0 else size for axis, size in enumerate(sizes)]
        )

    return tf.nest.map_structure(open_shape, structure)
