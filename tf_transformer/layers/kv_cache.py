"""The empty KV cache, and how each step of decoding extends and reads the cache."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from keras import ops

from tf_transformer.layers.base import Int, Tensor
from tf_transformer.layers.masks import attention_bias

Cache = dict[str, dict[str, Tensor]]


def empty_cache(
    layers: Sequence[Any], batch_size: Int, dtype: str, num_steps: Int | None, beam_size: Int | None
) -> Cache:
    """Return the cache of `Transformer.start_decoding` with nothing in `"source"` yet.

    Each layer has `num_heads` and `d_model`; `dtype` is the dtype of keys and values.
    """
    constants, target, history, slots = {}, {}, {}, 0
    if num_steps is not None:
        constants["steps"], slots = ops.arange(num_steps, dtype="int32"), num_steps
    if beam_size is not None:
        constants["beams"] = ops.arange(beam_size, dtype="int32")
        target["ancestors"] = ops.zeros((batch_size * beam_size, slots), "int32")
        slots = slots * beam_size
    for number, layer in enumerate(layers):
        shape = (batch_size, layer.num_heads, slots, layer.d_model // layer.num_heads)
        for kind in ("keys", "values"):
            history[f"{kind}_{number}"] = ops.zeros(shape, dtype)
    return {"constants": constants, "source": {}, "history": history, "target": target}


class DecodingStep(NamedTuple):
    """One step of decoding: its slots in the KV cache, and what each hypothesis may attend to.

    The K hypotheses of a sentence share one KV cache `(B, H, t * K, d_k)`: K slots at each
    position, one for each hypothesis. The cache is never re-ordered. Beam search re-orders only
    `ancestors`, the slot of each hypothesis' history at each position. A mask computed from
    `ancestors` hides the slots of other histories.

    Attributes:
        beams: int32 `(K,)`, the slots `0 … K - 1`; None if each sentence is one row.
        ancestors: int32 `(N, t)`, the newest position included; None if `beams` is None.
        bias: float tensor that broadcasts to the attention scores `(B, 1, K, t * K)`; None if
            every cached position may be attended to.
        is_newest: bool `(T * K, 1)`, True at the slots of the newest position in a KV cache of
            fixed size, T positions; None for a cache that grows.
    """

    beams: Tensor | None = None
    ancestors: Tensor | None = None
    bias: Tensor | None = None
    is_newest: Tensor | None = None

    @classmethod
    def at(cls, index: Int, cache: Cache, dtype: str) -> Self:
        """Return the step at the newest position `index`; `dtype` is the dtype of the scores."""
        steps, beams = cache["constants"].get("steps"), cache["constants"].get("beams")
        if beams is None:
            if steps is None:
                return cls()
            bias = attention_bias((steps <= index)[None, None, None], dtype)
            return cls(bias=bias, is_newest=(steps == index)[:, None])
        ancestors, is_newest = cache["target"]["ancestors"], None
        num_beams = ops.shape(beams)[0]
        own = ops.tile(beams, (ops.shape(ancestors)[0] // num_beams,))[:, None]
        if steps is None:
            ancestors = ops.concatenate([ancestors, own], axis=1)
        else:
            ancestors = ops.where(steps == index, own, ancestors)
            is_newest = ops.repeat(steps == index, num_beams)[:, None]
        length = ops.shape(ancestors)[1]
        visible = ops.reshape(ancestors, (-1, num_beams, length, 1)) == beams
        if steps is not None:
            visible = visible & (steps <= index)[:, None]
        mask = ops.reshape(visible, (-1, 1, num_beams, length * num_beams))
        return cls(beams, ancestors, attention_bias(mask, dtype), is_newest)

    def append(self, cached: Tensor, new: Tensor) -> Tensor:
        """Append the newest position `(B, H, K, d_k)` to cached keys or values.

        The cached tensor is `(B, H, t * K, d_k)`; it grows by K slots unless its size is fixed.
        """
        if self.is_newest is None:
            return ops.concatenate([cached, new], axis=2)
        if self.beams is not None:
            new = ops.tile(new, (1, 1, ops.shape(cached)[2] // ops.shape(self.beams)[0], 1))
        return ops.where(self.is_newest, new, cached)
