"""The KV cache: how it begins, and how a step of decoding extends it."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from tf_transformer.layers.base import Int, Tensor

Cache = dict[str, dict[str, Tensor]]


def empty_cache(layers: Sequence[Any], size: Int, dtype: str) -> Cache:
    """Return the cache of `Transformer.start_decoding` with nothing in `"source"` yet.

    Each layer has `num_heads` and `d_model`; `size` is the number of rows, and `dtype` is the dtype
    of keys and values.
    """
    target = {}
    for number, layer in enumerate(layers):
        shape = (size, layer.num_heads, 0, layer.d_model // layer.num_heads)
        for kind in ("keys", "values"):
            target[f"{kind}_{number}"] = ops.zeros(shape, dtype)
    return {"constants": {}, "source": {}, "target": target}


def append(cached: Tensor, new: Tensor) -> Tensor:
    """Append the newest position `(N, H, 1, d_k)` to cached keys or values `(N, H, t, d_k)`."""
    return ops.concatenate([cached, new], axis=2)
