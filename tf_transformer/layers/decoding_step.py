"""One step of decoding: what every layer of the decoder needs to know about it."""

from typing import Any, NamedTuple

from keras import ops

from tf_transformer.layers.attention import attention_bias


class DecodingStep(NamedTuple):
    """Where the newest position is remembered, and which positions each row may see.

    All K hypotheses of a sentence write into one memory `(B, H, t * K, d_k)`, which is never
    re-ordered: when the search re-orders hypotheses, it re-orders `ancestors` alone, the few
    integers that say which of the K slots a hypothesis wrote at each position of its past. The
    mask made of them hides the slots of the others.

    Attributes:
        beams: int32 `(K,)`, the slots of a sentence; None where each sentence is one row.
        ancestors: int32 `(N, t)` with the newest position, or None with `beams`.
        bias: float, broadcasts to `(B, 1, K, t * K)`, or None where all may be seen.
        here: bool `(T * K, 1)`, the newest position's slots in a memory of fixed size; None in
            one that grows.
    """

    beams: Any
    ancestors: Any
    bias: Any
    here: Any

    @classmethod
    def at(cls, index, constants, target, dtype):
        """The step at position `index`.

        Args:
            index: int or int scalar tensor.
            constants, target: those parts of the cache, see `Decoder.start_decoding`.
            dtype: dtype of attention scores.
        """
        steps, beams, ancestors = (
            constants.get("steps"), constants.get("beams"), target.get("ancestors"),
        )  # fmt: skip
        past = None if steps is None else (steps <= index)[None, None, :]
        if beams is None:
            bias = None if past is None else attention_bias(past, dtype)
            return cls(None, None, bias, None if past is None else (steps == index)[:, None])
        num_beams = ops.shape(beams)[0]
        own = ops.tile(beams, (ops.shape(ancestors)[0] // num_beams,))[:, None]
        if steps is None:
            ancestors, here = ops.concatenate([ancestors, own], axis=1), None
        else:
            ancestors = ops.where(steps == index, own, ancestors)
            here = ops.repeat(steps == index, num_beams)[:, None]
        length = ops.shape(ancestors)[1]
        visible = ops.reshape(ancestors, (-1, num_beams, length, 1)) == beams
        if past is not None:
            visible = visible & past[..., None]
        mask = ops.reshape(visible, (-1, num_beams, length * num_beams))
        return cls(beams, ancestors, attention_bias(mask, dtype), here)

    def remember(self, memory, new):
        """Adds the newest position `(B, H, K, d_k)` to a memory `(B, H, t * K, d_k)`."""
        if self.here is None:
            return ops.concatenate([memory, new], axis=2)
        if self.beams is not None:
            new = ops.tile(new, (1, 1, ops.shape(memory)[2] // ops.shape(self.beams)[0], 1))
        return ops.where(self.here, new, memory)
