"""Compaction: sentences that are done leave the batch, so that no step is spent on them."""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.decoding.cache import open_shapes


class _Live(NamedTuple):
    """The sentences that are still decoded."""

    state: Any
    source: Any  # that part of the cache
    limits: tf.Tensor  # int32 (M,)
    places: tf.Tensor  # int32 (M,), where they stand in the whole batch

    def only(self, kept, beam_size):
        """These sentences alone, by their places in the present batch."""

        def gather(structure, rows):
            return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), structure)

        slots = tf.range(beam_size, dtype=kept.dtype)
        hypotheses = tf.reshape(kept[:, None] * tf.cast(beam_size, kept.dtype) + slots, [-1])
        state = {
            name: field if name == "index" else gather(field, kept)
            for name, field in self.state._asdict().items()
            if name != "cache"
        }
        cache = {
            name: gather(part, hypotheses if name == "target" else kept)
            for name, part in self.state.cache.items()
        }
        return _Live(self.state._replace(**state, cache=cache), *gather(self[1:], kept))


def decode_live(decode, outcome, state, fixed, limits, pad_id, beam_size=1):
    """Runs a search on sentences of which fewer and fewer are left.

    Args:
        decode: `(state, fixed, limits, goes_on) -> state`, the steps of some sentences as long as
            `goes_on(state)`.
        outcome: `(state, limits) -> NamedTuple` of tensors `(B, …)`, the first of them ids
            `(B, …, T)`; it is asked for sentences that go on too, and asked again later.
        state: NamedTuple with `index ()`, `done (B,)`, the moving parts of a `cache`, and
            anything else `(B, …)`.
        fixed: the parts of the cache that never change.
        limits: int32 `(B,)`.
        pad_id: int.
        beam_size: int or int scalar tensor, rows of each sentence in the cache's `"target"`.

    Returns:
        the outcome of all sentences, T the number of steps.
    """
    shared = {name: part for name, part in fixed.items() if name != "source"}

    def decode_and_compact(live, found):
        end = decode(live.state, {**shared, "source": live.source}, live.limits, _most_live)
        # What was found before is as long as the steps were then.
        grown = end.index - tf.shape(found[0])[-1]
        room = [[0, 0]] * (len(found[0].shape) - 1) + [[0, grown]]
        longer = tf.pad(found[0], room, constant_values=pad_id)
        found = type(found)(
            *(
                tf.tensor_scatter_nd_update(whole, live.places[:, None], part)
                for whole, part in zip((longer, *found[1:]), outcome(end, live.limits), strict=True)
            )
        )
        return live._replace(state=end).only(tf.where(~end.done)[:, 0], beam_size), found

    live = _Live(state, fixed.get("source", {}), limits, tf.range(tf.shape(limits)[0]))
    found = outcome(state, limits)
    return tf.while_loop(
        lambda live, found: tf.shape(live.places)[0] > 0,
        decode_and_compact,
        [live, found],
        shape_invariants=[open_shapes(live), open_shapes(found)],
    )[1]


def some_live(state):
    """Whether any sentence goes on."""
    return tf.reduce_any(~state.done)


def _most_live(state):
    """Whether so many go on that to take the others out would cost more than it gains."""
    live = tf.reduce_sum(tf.cast(~state.done, tf.int32))
    return 4 * live > 3 * tf.shape(state.done)[0]
