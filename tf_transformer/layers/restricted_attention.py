"""Self-attention to near positions only, in time and memory that grow with the length alone."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.attention import GlobalSelfAttention
from tf_transformer.layers.base import Int, Tensor
from tf_transformer.layers.masks import attention_bias


class _Blocks:
    """A sequence of T positions in n blocks of b, each of which attends to itself and neighbours.

    No block is longer than the radius, so what a position attends to is in its own block, in the
    one before and in the one after: its window of w = 3b positions, or of 2b without the one after.
    """

    def __init__(self, length: Int, radius: int, ahead: int) -> None:
        """`ahead` is 1 if a block attends to the one after it, else 0."""
        known = isinstance(length, int)
        self.length, self.radius, self.ahead = length, radius, ahead
        self.size = min(max(length, 1), radius) if known else ops.clip(length, 1, radius)
        self.number = -(-length // self.size)
        self.window = (2 + ahead) * self.size

    def queries(self, x: Tensor) -> Tensor:
        """Cuts `(B, H, T, E)` into the blocks `(B, H, n, b, E)`."""
        return self._cut(x, 0, self.number)

    def keys(self, x: Tensor) -> Tensor:
        """Gathers from `(B, H, T, E)` the windows of all blocks, `(B, H, n, w, E)`."""
        blocks = self._cut(x, self.size, 1 + self.number + self.ahead)
        neighbours = [blocks[:, :, i : i + self.number] for i in range(2 + self.ahead)]
        return ops.concatenate(neighbours, axis=3)

    def _cut(self, x: Tensor, before: Int, number: Int) -> Tensor:
        """Cuts `(B, H, T, E)` into blocks, with zeros before and after it."""
        after = number * self.size - before - self.length
        padded = ops.pad(x, ((0, 0), (0, 0), (before, after), (0, 0)))
        return ops.reshape(padded, (*ops.shape(x)[:2], number, self.size, ops.shape(x)[3]))

    def mask(self, mask: Tensor | None) -> Tensor:
        """Return what each position may attend to in its window, broadcasts to `(B, H, n, b, w)`.

        The mask is bool and broadcasts to `(B, H, T, T)`; None for everywhere.
        """
        starts = ops.arange(self.number)[:, None, None] * self.size
        queries = starts + ops.arange(self.size)[:, None]
        keys = starts + ops.arange(self.window) - self.size
        near = ops.abs(keys - queries) <= self.radius
        near = near & (keys <= queries + self.ahead * self.radius)
        near = near & (keys >= 0) & (keys < self.length)
        if mask is None:
            return near
        *leading, num_queries, num_keys = ops.shape(mask)
        # An axis of size 1 has one index only.
        rows, columns = ops.clip(queries, 0, num_queries - 1), ops.clip(keys, 0, num_keys - 1)
        pairs = ops.reshape(mask, (*leading, num_queries * num_keys))
        return near & ops.take(pairs, rows * num_keys + columns, axis=2)

    def joined(self, blocks: Tensor) -> Tensor:
        """Join the blocks `(B, H, n, b, E)` to `(B, H, T, E)`."""
        shape = ops.shape(blocks)
        joined = ops.reshape(blocks, (*shape[:2], self.number * self.size, *shape[4:]))
        return joined[:, :, : self.length]

    def weights(self, weights: Tensor) -> Tensor:
        """Scatters the weights of windows `(B, H, n, b, w)` to `(B, H, T, T)`."""
        positions = ops.arange(self.length)
        in_window = positions - positions[:, None] // self.size * self.size + self.size
        outside = (in_window < 0) | (in_window >= self.window)
        rows = self.joined(weights)
        rows = ops.concatenate([rows, ops.zeros_like(rows[..., :1])], axis=-1)
        indices = ops.where(outside, self.window, in_window)
        return ops.take_along_axis(rows, indices[None, None], axis=-1)


@keras.saving.register_keras_serializable(package="tf_transformer")
class RestrictedSelfAttention(GlobalSelfAttention):
    """Self-attention of each position to those at most `radius` away: restricted attention.

    Vaswani et al. 2017, section 4; the sliding window of Longformer (Beltagy et al. 2020). It
    equals `GlobalSelfAttention` with `local_mask`, but blocks of positions attend to neighbouring
    blocks, so that time and memory grow with `T * radius` and not with `T * T`.

    Args, call arguments and returns: as in `GlobalSelfAttention`, and
        radius: how far a position attends to each side, at least 1.
    """

    _ahead = 1

    def __init__(
        self, num_heads: int, d_model: int, radius: int, dropout_rate: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(num_heads, d_model, dropout_rate, **kwargs)
        if radius < 1:
            raise ValueError(f"radius must be at least 1, a neighbour; received {radius=}.")
        self.radius = radius

    def _attend(self, queries, keys, values, mask, training, return_weights):
        blocks = _Blocks(ops.shape(queries)[2], self.radius, self._ahead)
        heads, weights = self._weigh(
            blocks.queries(queries),
            blocks.keys(self._scaled(keys)),
            blocks.keys(values),
            attention_bias(blocks.mask(mask), self.compute_dtype),
            training,
        )
        output = self._join(blocks.joined(heads))
        return output, blocks.weights(weights) if return_weights else None


@keras.saving.register_keras_serializable(package="tf_transformer")
class RestrictedCausalSelfAttention(RestrictedSelfAttention):
    """Self-attention of each position to itself and the `radius` positions before it."""

    _ahead = 0
