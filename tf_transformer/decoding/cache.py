"""Decoding caches: dicts of flat dicts of tensors. A model has the parts that it needs.

- `"constants"` belong to no sentence and never change.
- `"source"` `(B, …)` belongs to the sentences and never changes.
- `"history"` `(B, …)` belongs to them too; each step adds to it, and it is never re-ordered.
- `"target"` `(N, …)` belongs to the hypotheses and is re-ordered with them.
"""

import tensorflow as tf

_FIXED = ("constants", "source")


def split_cache(cache):
    """The parts of a cache that never change, and those that a loop carries."""
    fixed = {name: part for name, part in cache.items() if name in _FIXED}
    return fixed, {name: part for name, part in cache.items() if name not in _FIXED}


def open_shapes(structure):
    """The shapes a loop may give the tensors of `structure`: rows and growing axes are open.

    An axis that is empty at the start is one that grows by a position a step.

    Args:
        structure: nested structure of tensors.

    Returns:
        the same structure of `tf.TensorShape`.
    """

    def open_shape(tensor):
        sizes = tensor.shape.as_list()
        return tf.TensorShape(
            [None if axis == 0 or size == 0 else size for axis, size in enumerate(sizes)]
        )

    return tf.nest.map_structure(open_shape, structure)


def empty_ids(rows, num_steps, pad_id):
    """Room for the ids of hypotheses, int32 `(*rows, num_steps)`; no room at all if it grows.

    Args:
        rows: list of ints or int scalar tensors.
        num_steps: int or int scalar tensor, the most steps there can be; None to grow.
        pad_id: int.
    """
    return tf.fill([*rows, 0 if num_steps is None else num_steps], pad_id)


def append_ids(ids, new_ids, index, num_steps):
    """Adds the ids of step `index`.

    Args:
        ids: int32 `(…, T)`, made by `empty_ids`.
        new_ids: int32 `(…)`.
        index: int32 scalar tensor.
        num_steps: as in `empty_ids`.

    Returns:
        int32 `(…, T + 1)`, or `(…, T)` where the room is there.
    """
    if num_steps is None:
        return tf.concat([ids, new_ids[..., None]], axis=-1)
    return tf.where(tf.range(num_steps) == index, new_ids[..., None], ids)
