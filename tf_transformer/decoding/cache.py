"""Decoding caches: dicts of flat dicts of tensors. A model has the parts that it needs.

- `"constants"` belong to no sentence and never change.
- `"source"` `(B, …)` belongs to the sentences and never changes.
- `"history"` `(B, …)` belongs to the sentences; each step appends to it; never re-ordered.
- `"target"` `(N, …)` belongs to the hypotheses and is re-ordered with them.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_FIXED = ("constants", "source")


def split_cache(cache: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts of a cache that never change, and those that steps change."""
    fixed = {name: part for name, part in cache.items() if name in _FIXED}
    return fixed, {name: part for name, part in cache.items() if name not in _FIXED}


def open_shapes(structure: Any) -> Any:
    """The shape invariants of a loop over `structure`: the first axis and growing axes are open.

    An axis of size 0 is one that grows with each step.

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


def empty_ids(
    shape: Sequence[int | tf.Tensor], num_steps: int | tf.Tensor | None, pad_id: int
) -> tf.Tensor:
    """The ids of hypotheses before the first step: padding, int32 `(*shape, num_steps)`.

    With `num_steps` None, where ids grow in each step, the last axis has size 0.
    """
    return tf.fill([*shape, 0 if num_steps is None else num_steps], pad_id)


def append_ids(
    ids: tf.Tensor,
    token_ids: tf.Tensor,
    index: tf.Tensor,
    num_steps: int | tf.Tensor | None,
) -> tf.Tensor:
    """Appends the tokens of step `index`.

    Args:
        ids: int32 `(…, T)`, made by `empty_ids`.
        token_ids: int32 `(…)`.
        index: int32 scalar tensor.
        num_steps: as in `empty_ids`.

    Returns:
        int32 `(…, T + 1)`, or `(…, num_steps)`.
    """
    if num_steps is None:
        return tf.concat([ids, token_ids[..., None]], axis=-1)
    return tf.where(tf.range(num_steps) == index, token_ids[..., None], ids)
