"""The arguments of a search: conversions and checks."""

import math
import numbers
import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_transformer.decoding.cache import is_flat, split_cache
from tf_transformer.decoding.contract import Cache, DecodeStep

_INT_DTYPES = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64)


def to_limits(limits: Any) -> tf.Tensor:
    """Limits as int32 `(B,)`, from integers of any type.

    Raises:
        TypeError: `limits` are not integers.
        ValueError: `limits` are not of rank 1, or are known to be negative.
    """
    is_empty = isinstance(limits, (list, tuple)) and not limits
    try:
        tensor = tf.convert_to_tensor(limits, tf.int32 if is_empty else None)
    except (TypeError, ValueError):
        raise TypeError(
            f"limits must be integers of the shape (B,); received {type(limits).__name__}."
        ) from None
    if tensor.dtype not in _INT_DTYPES:
        raise TypeError(f"limits must be integers of the shape (B,); received {tensor.dtype.name}.")
    if tensor.shape.rank not in (1, None):
        raise ValueError(f"limits must have the shape (B,); received the shape {tensor.shape}.")
    if tensor.shape.rank is None:
        tensor = tf.ensure_shape(tensor, [None])
    values = tf.get_static_value(tensor)
    if values is not None and values.size and values.min() < 0:
        raise ValueError(f"limits must not be negative; received {values.min()}.")
    return tensor if tensor.dtype == tf.int32 else tf.saturate_cast(tensor, tf.int32)


def to_num_steps(num_steps: Any, limits: tf.Tensor) -> int | tf.Tensor | None:
    """The number of steps, which must be more than the largest limit; None stays None."""
    if num_steps is None:
        return None
    num_steps, limits = to_size("num_steps", num_steps), tf.get_static_value(limits)
    known = tf.get_static_value(num_steps)
    if known is not None and limits is not None and limits.size and known <= limits.max():
        raise ValueError(
            f"num_steps must be greater than the largest limit {limits.max()}, since the end "
            f"token takes a step; received num_steps={known}."
        )
    return num_steps


def to_size(name: str, value: Any) -> int | tf.Tensor:
    """A positive integer as an int, or an int32 scalar tensor where it was a tensor."""
    if tf.is_tensor(value):
        if value.dtype not in _INT_DTYPES or value.shape.rank not in (0, None):
            raise TypeError(
                f"{name} must be an integer; received a tensor {value.dtype.name} "
                f"of the shape {value.shape}."
            )
        value = tf.cast(value, tf.int32)
    else:
        value = _to_int(name, value)
    known = tf.get_static_value(value)
    if known is not None and known < 1:
        raise ValueError(f"{name} must be at least 1; received {name}={known}.")
    return value


def to_n_best(n_best: Any, beam_size: int | tf.Tensor) -> int | tf.Tensor:
    """The number of hypotheses to return, at most `beam_size`."""
    n_best = to_size("n_best", n_best)
    most, known = tf.get_static_value(beam_size), tf.get_static_value(n_best)
    if most is not None and known is not None and known > most:
        raise ValueError(f"n_best must be at most beam_size={most}; received n_best={known}.")
    return n_best


def to_length_penalty(length_penalty: Any) -> float | tf.Tensor:
    """The length penalty as a float, or a float32 scalar tensor where it was a tensor."""
    if tf.is_tensor(length_penalty):
        length_penalty = tf.cast(length_penalty, tf.float32)
    elif isinstance(length_penalty, numbers.Real):
        length_penalty = float(length_penalty)
    else:
        raise TypeError(f"length_penalty must be a number; received {_short(length_penalty)}.")
    known = tf.get_static_value(length_penalty)
    # With a negative one, the search could stop before it has found the best hypothesis.
    if known is not None and (math.isnan(known) or known < 0):
        raise ValueError(f"length_penalty must not be negative; received {known:.6g}.")
    return length_penalty


def to_special_ids(**special_ids: Any) -> dict[str, int]:
    """The ids of special tokens as ints, by their names."""
    special_ids = {name: _to_int(name, value) for name, value in special_ids.items()}
    for name, value in special_ids.items():
        if value < 0:
            raise ValueError(f"{name} must not be negative; received {name}={value}.")
    return special_ids


def check_step(decode_step: DecodeStep, cache: Cache, special_ids: dict[str, int]) -> Callable:
    """A decoding step by the parts of the cache, with its results converted and checked.

    Args:
        decode_step: as in `beam_search`.
        cache: as the search received it.
        special_ids: as `to_special_ids` returned them.

    Returns:
        `(token_ids (N,), index, fixed, changing) -> (logits float32 (N, V), changing)`, where
        `fixed` and `changing` are as `split_cache` returns them.

    Raises:
        TypeError: `decode_step` is not callable. The step itself raises a TypeError or a
            ValueError where `decode_step` returns anything but logits and a cache like its own.
    """
    if not callable(decode_step):
        raise TypeError(
            f"decode_step must be callable, (token_ids, index, cache) -> (logits, cache); "
            f"received {_short(decode_step)}."
        )
    flat = is_flat(cache)

    def step(token_ids, index, fixed, changing):
        cache = changing["target"] if flat else {**fixed, **changing}
        result = decode_step(token_ids, index, cache)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            size = f" of {len(result)}" if isinstance(result, (tuple, list)) else ""
            raise TypeError(
                f"decode_step must return (logits, cache); received {type(result).__name__}{size}."
            )
        logits, cache = result
        logits = _to_logits(logits, token_ids, special_ids)
        return logits, _changing_parts(cache, changing, flat)

    return step


def _to_logits(logits, token_ids, special_ids):
    """Logits as float32 `(N, V)`."""
    try:
        logits = tf.convert_to_tensor(logits)
        received = logits.dtype.name
    except (TypeError, ValueError):
        logits, received = None, type(logits).__name__
    if logits is None or not logits.dtype.is_floating:
        raise TypeError(f"decode_step must return logits of a float dtype; received {received}.")
    if not logits.shape.is_compatible_with([token_ids.shape[0], None]):
        raise ValueError(
            f"decode_step must return logits of the shape (N, V), with N={token_ids.shape[0]}; "
            f"received the shape {logits.shape}."
        )
    if logits.shape.rank is None:
        logits = tf.ensure_shape(logits, [None, None])
    name, largest = max(special_ids.items(), key=lambda item: item[1])
    if logits.shape[1] is not None and largest >= logits.shape[1]:
        raise ValueError(
            f"the vocabulary of the logits (N, V) must contain {name}={largest}; "
            f"received V={logits.shape[1]}."
        )
    return tf.cast(logits, tf.float32)


def _changing_parts(cache, given, flat):
    """The parts of a returned cache that steps change, with the structure of `given`."""
    try:
        changing = {"target": cache} if flat else split_cache(cache)[1]
        tf.nest.assert_same_structure(given, changing)
        return tf.nest.map_structure(tf.convert_to_tensor, changing)
    except (AttributeError, TypeError, ValueError):
        expected = given["target"] if flat else given
        raise ValueError(
            f"decode_step must return the cache with the structure that it received, "
            f"{_outline(expected)}; received {_outline(cache)}."
        ) from None


def _to_int(name, value):
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer; received {_short(value)}.") from None


def _outline(structure):
    """The names of a nested structure, in one line."""
    if isinstance(structure, dict):
        return "{" + ", ".join(f"{k}: {_outline(v)}" for k, v in structure.items())[:80] + "}"
    return type(structure).__name__


def _short(value):
    """The value in one line."""
    return " ".join(repr(value).split())[:80]
