"""Self-attention to near positions; time and memory grow linearly with the length."""

from typing import Any

from keras import ops

from tf_transformer.layers.attention import GlobalSelfAttention
from tf_transformer.layers.base import Int, Tensor
from tf_transformer.layers.masks import attention_bias


class _Blocks:
    """A sequence of T positions in n blocks of b positions, which attend to neighbouring blocks.

    Blocks are as long as the radius, or there is only one block. So a position attends to a window
    of w = 3b positions: its own block, the one before and the one after.
    """

    def __init__(self, length: Int, radius: int) -> None:
        known = isinstance(length, int)
        self.length, self.radius = length, radius
        self.size = min(max(length, 1), radius) if known else ops.clip(length, 1, radius)
        self.number = -(-length // self.size)
        self.window = 3 * self.size
        # The positions of the queries `(n, b)` and of the keys `(n, w)`, also beyond the sequence.
        starts = ops.arange(self.number)[:, None] * self.size
        self.queries = starts + ops.arange(self.size)
        self.keys = starts + ops.arange(self.window) - self.size

    def at(self, positions: Tensor, x: Tensor) -> Tensor:
        """Return `x` `(B, H, T, E)` at positions `(n, …)`, as `(B, H, n, …, E)`.

        Beyond the ends the border is repeated, which the mask hides.
        """
        return ops.take(x, ops.clip(positions, 0, self.length - 1), axis=2)

    def mask(self, mask: Tensor | None) -> Tensor:
        """Return the mask of each position's window, which broadcasts to `(B, H, n, b, w)`.

        The given mask is bool and broadcasts to `(B, H, T, T)`; None to attend everywhere.
        """
        queries, keys = self.queries[:, :, None], self.keys[:, None]
        near = ops.abs(keys - queries) <= self.radius
        near = near & (keys >= 0) & (keys < self.length)
        if mask is None:
            return near
        *leading, num_queries, num_keys = ops.shape(mask)
        # Clipping turns every index on an axis of size 1 into 0.
        rows, columns = ops.clip(queries, 0, num_queries - 1), ops.clip(keys, 0, num_keys - 1)
        pairs = ops.reshape(mask, (*leading, num_queries * num_keys))
        return near & ops.take(pairs, rows * num_keys + columns, axis=2)

    def joined(self, blocks: Tensor) -> Tensor:
        """Join the blocks `(B, H, n, b, E)` to `(B, H, T, E)`."""
        shape = ops.shape(blocks)
        joined = ops.reshape(blocks, (*shape[:2], self.number * self.size, *shape[4:]))
        return joined[:, :, : self.length]

    def weights(self, weights: Tensor) -> Tensor:
        """Return the weights `(B, H, T, T)`, given those of the windows `(B, H, n, b, w)`."""
        positions = ops.arange(self.length)
        in_window = positions - positions[:, None] // self.size * self.size + self.size
        outside = (in_window < 0) | (in_window >= self.window)
        rows = self.joined(weights)
        rows = ops.concatenate([rows, ops.zeros_like(rows[..., :1])], axis=-1)
        indices = ops.where(outside, self.window, in_window)
        return ops.take_along_axis(rows, indices[None, None], axis=-1)


class RestrictedSelfAttention(GlobalSelfAttention):
    """Self-attention of each position to positions at most `radius` away.

    This is the restricted attention of Vaswani et al. 2017, section 4, and Longformer's sliding
    window (Beltagy et al. 2020). The result equals `GlobalSelfAttention` with `local_mask`, but as
    blocks attend to neighbouring blocks, time and memory grow with `T * radius`, not `T * T`.

    Args, call arguments and returns: as in `GlobalSelfAttention`, and
        radius: how far a position attends to each side, at least 1.

    Example:
        >>> attention = tt.RestrictedSelfAttention(num_heads=2, d_model=8, radius=2)
        >>> attention(np.ones((1, 50, 8))).shape
        TensorShape([1, 50, 8])
    """

    def __init__(
        self, num_heads: int, d_model: int, radius: int, dropout_rate: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(num_heads, d_model, dropout_rate, **kwargs)
        if radius < 1:
            raise ValueError(f"radius must be at least 1; received {radius=}.")
        self.radius = radius

    def _attend(
        self, heads: list[Tensor], mask: Tensor | None, training: bool | None, with_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        queries, keys, values = heads
        blocks = _Blocks(ops.shape(queries)[2], self.radius)
        bias = attention_bias(blocks.mask(mask), self.compute_dtype)
        keys, values = (blocks.at(blocks.keys, x) for x in (self._scaled(keys), values))
        weights = self._weights(blocks.at(blocks.queries, queries), keys, bias)
        values = ops.matmul(self.dropout(weights, training=training), values)
        output = self._join(blocks.joined(values))
        return output, blocks.weights(weights) if with_weights else None
