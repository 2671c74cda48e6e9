"""The empty KV cache, and how each step of decoding extends and reads the cache."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from keras import ops

from tf_transformer.layers.base import Int, Tensor
from tf_transformer.layers.masks import attention_bias

Cache = dict[str, dict[str, Tensor]]


def empty_cache(layers: Sequence[Any], size: Int, dtype: str, num_steps: Int | None) -> Cache:
    """Return the cache of `Transformer.start_decoding` with nothing in `"source"` yet.

    Each layer has `num_heads` and `d_model`; `size` is the number of rows, and `dtype` is the dtype
    of keys and values.
    """
    constants, target, slots = {}, {}, 0
    if num_steps is not None:
        constants["steps"], slots = ops.arange(num_steps, dtype="int32"), num_steps
    for number, layer in enumerate(layers):
        shape = (size, layer.num_heads, slots, layer.d_model // layer.num_heads)
        for kind in ("keys", "values"):
            target[f"{kind}_{number}"] = ops.zeros(shape, dtype)
    return {"constants": constants, "source": {}, "target": target}


class DecodingStep(NamedTuple):
    """One step of decoding: where it writes into the KV cache, and what it may attend to.

    Attributes:
        bias: float tensor `(1, 1, 1, T)` for the attention scores, which hides the slots of later
            positions in a KV cache of fixed size, T positions; None for a cache that grows.
        is_newest: bool `(T, 1)`, True at the slot of the newest position; None likewise.
    """

    bias: Tensor | None = None
    is_newest: Tensor | None = None

    @classmethod
    def at(cls, index: Int, cache: Cache, dtype: str) -> Self:
        """Return the step at the newest position `index`; `dtype` is the dtype of the scores."""
        steps = cache["constants"].get("steps")
        if steps is None:
            return cls()
        bias = attention_bias((steps <= index)[None, None, None], dtype)
        return cls(bias, (steps == index)[:, None])

    def append(self, cached: Tensor, new: Tensor) -> Tensor:
        """Append the newest position `(N, H, 1, d_k)` to cached keys or values `(N, H, t, d_k)`.

        The result has a position more unless the cache has a fixed size.
        """
        if self.is_newest is None:
            return ops.concatenate([cached, new], axis=2)
        return ops.where(self.is_newest, new, cached)
