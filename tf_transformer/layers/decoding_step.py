"""What the decoder's layers share in one step of decoding."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from keras import ops

from tf_transformer.layers.attention import attention_bias
from tf_transformer.layers.base import Tensor


def no_steps(
    batch_size: int | Tensor, num_steps: int | Tensor | None, beam_size: int | Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Tensor], int | Tensor]:
    """The parts of a cache that `DecodingStep.at` reads, before the first step.

    Args:
        batch_size: B.
        num_steps, beam_size: as in `Decoder.start_decoding`.

    Returns:
        the cache's constants and target, and the number of slots of an empty KV cache.
    """
    constants, target, positions = {}, {}, 0
    if num_steps is not None:
        constants["steps"], positions = ops.arange(num_steps, dtype="int32"), num_steps
    if beam_size is not None:
        constants["beams"] = ops.arange(beam_size, dtype="int32")
        target["ancestors"] = ops.zeros((batch_size * beam_size, positions), "int32")
        positions = positions * beam_size
    return constants, target, positions


class DecodingStep(NamedTuple):
    """How to append the newest position to the KV cache, and what each hypothesis may attend to.

    The K hypotheses of a sentence share one KV cache `(B, H, t * K, d_k)`: K slots at each
    position, one for each hypothesis. It is never re-ordered. When beam search re-orders the
    hypotheses, it re-orders `ancestors` only, the slot that each hypothesis' history has at each
    position. A mask computed from them hides the slots of other histories.

    Attributes:
        beams: int32 `(K,)`, the slots `0 … K - 1`; None where each sentence is one row.
        ancestors: int32 `(N, t)`, the newest position included; None where `beams` is.
        bias: float tensor that broadcasts to the attention scores `(B, 1, K, t * K)`; None where
            every cached position may be attended to.
        distances: int32 `(T * K, 1)`, how far before the newest position each slot of a KV cache
            of fixed size is; None in one that grows.
    """

    beams: Tensor | None
    ancestors: Tensor | None
    bias: Tensor | None
    distances: Tensor | None

    @classmethod
    def at(
        cls,
        index: int | Tensor,
        constants: dict[str, Tensor],
        target: dict[str, Tensor],
        dtype: str,
    ) -> Self:
        """Returns the step at position `index`.

        Args:
            index: int or int scalar tensor.
            constants, target: these parts of the cache, see `Decoder.start_decoding`.
            dtype: dtype of the attention scores.
        """
        steps, beams, ancestors = (
            constants.get("steps"), constants.get("beams"), target.get("ancestors"),
        )  # fmt: skip
        if beams is None:
            if steps is None:
                return cls(None, None, None, None)
            bias = attention_bias((steps <= index)[None, None, None], dtype)
            return cls(None, None, bias, (index - steps)[:, None])
        num_beams = ops.shape(beams)[0]
        own = ops.tile(beams, (ops.shape(ancestors)[0] // num_beams,))[:, None]
        if steps is None:
            ancestors, distances = ops.concatenate([ancestors, own], axis=1), None
        else:
            ancestors = ops.where(steps == index, own, ancestors)
            distances = ops.repeat(index - steps, num_beams)[:, None]
        length = ops.shape(ancestors)[1]
        visible = ops.reshape(ancestors, (-1, num_beams, length, 1)) == beams
        if steps is not None:
            visible = visible & (steps <= index)[:, None]
        mask = ops.reshape(visible, (-1, 1, num_beams, length * num_beams))
        return cls(beams, ancestors, attention_bias(mask, dtype), distances)

    def append(self, cached: Tensor, new: Tensor) -> Tensor:
        """Appends the newest position `(B, H, K, d_k)` to cached keys or values.

        Args:
            cached: float tensor `(B, H, t * K, d_k)`.
            new: float tensor `(B, H, K, d_k)`.

        Returns:
            float tensor `(B, H, (t + 1) * K, d_k)`, or of the size of `cached` where it is fixed.
        """
        if self.distances is None:
            return ops.concatenate([cached, new], axis=2)
        if self.beams is not None:
            new = ops.tile(new, (1, 1, ops.shape(cached)[2] // ops.shape(self.beams)[0], 1))
        return ops.where(self.distances == 0, new, cached)

    def within(self, radius: int) -> Self:
        """The step in which only the newest position and `radius` before it may be attended to."""
        if self.distances is not None:
            far = attention_bias((self.distances <= radius)[None, None, :, 0], self.bias.dtype)
            return self._replace(bias=self.bias + far)
        if self.bias is None:
            return self
        return self._replace(bias=self.bias[..., -self._num_slots(radius + 1) :])

    def latest(self, cached: Tensor, num_positions: int) -> Tensor:
        """The latest positions of a KV cache that grows, all of one of fixed size."""
        if self.distances is not None:
            return cached
        return cached[:, :, -self._num_slots(num_positions) :]

    def _num_slots(self, num_positions: int) -> int | Tensor:
        return num_positions * (1 if self.beams is None else ops.shape(self.beams)[0])


def step_through(
    layers: Sequence[Any], x: Tensor, index: int | Tensor, cache: dict[str, Any], dtype: str
) -> tuple[Tensor, dict[str, Any]]:
    """The newest position of each hypothesis through a stack of layers, one after another.

    Args:
        layers: Each with `decode_step(x, keys, values, source_keys, source_values, bias, step)`.
        x: float tensor `(N, D)`.
        index: int or int scalar tensor, its position.
        cache: as of `Decoder.start_decoding`, or of the previous step.
        dtype: of the computation.

    Returns:
        hidden state `(N, D)` and the cache for the next step.
    """
    source, past, history = cache["source"], cache["history"], {}
    step = DecodingStep.at(index, cache["constants"], cache["target"], dtype)
    for number, layer in enumerate(layers):
        keys, values = f"keys_{number}", f"values_{number}"
        x, history[keys], history[values] = layer.decode_step(
            x, past[keys], past[values], source[keys], source[values], source["bias"], step
        )
    target = {} if step.ancestors is None else {"ancestors": step.ancestors}
    return x, {**cache, "history": history, "target": target}
