"""Decoding caches: their parts, and tensors that grow with the steps (see `TranslationModel`)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

_FIXED = ("constants", "source")
_PARTS = (*_FIXED, "history", "target")


def is_flat(cache: Mapping[str, Any]) -> bool:
    """Whether a cache has none of the parts' names, so that all of it belongs to `"target"`."""
    if not isinstance(cache, Mapping):
        raise TypeError(f"cache must be a dict; received {type(cache).__name__}.")
    return not cache.keys() & set(_PARTS)


def cache_parts(
    cache: Mapping[str, Any], num_sentences: int | None, beam_size: int | tf.Tensor = 1
) -> dict[str, Any]:
    """The parts of a cache, which hold tensors (`"constants"` may hold anything).

    Args:
        cache: as `start_decoding` returned it.
        num_sentences: B, where it is known.
        beam_size: K.

    Raises:
        TypeError: `cache` is not a dict, or holds something that no tensor can be made of.
        ValueError: it has some of the parts' names and others, or tensors of other sizes.
    """
    parts = {"target": cache} if is_flat(cache) else dict(cache)
    if unknown := sorted(parts.keys() - set(_PARTS), key=str):
        raise ValueError(
            f"cache has an unknown part, {unknown[0]!r}; known are {', '.join(_PARTS)}."
        )
    beam_size = tf.get_static_value(beam_size)
    known = None not in (num_sentences, beam_size)
    num_hypotheses = int(num_sentences * beam_size) if known else None
    for name in [name for name in parts if name != "constants"]:
        parts[name] = tf.nest.map_structure(partial(_to_tensor, name), parts[name])
        size = num_hypotheses if name == "target" else num_sentences
        shape = "(N, …), N = B * beam_size" if name == "target" else "(B, …), B"
        for tensor in tf.nest.flatten(parts[name]):
            if tensor.shape.rank == 0 or not tensor.shape[:1].is_compatible_with([size]):
                expected = shape if size is None else f"{shape} = {size}"
                raise ValueError(
                    f"cache part {name!r} must hold tensors of the shape {expected}; "
                    f"received the shape {tensor.shape}."
                )
    return parts


def _to_tensor(name, leaf):
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError):
        raise TypeError(
            f"cache part {name!r} must hold tensors; received {type(leaf).__name__}."
        ) from None


def split_cache(cache: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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
