"""Attention masks: boolean, `True` where a query may attend to a key.

Every mask has a shape that broadcasts to `(B, T, S)`: batch, query positions, key positions.
Masks are combined with `&` and are always passed as arguments. The mask alone decides whether a
stack of layers is an encoder or a causal, prefix or permutation language model.
"""

import keras
from keras import ops

from tf_transformer.layers.base import Int, Shape, Tensor


def attention_bias(mask: Tensor, dtype: str) -> Tensor:
    """Turn a mask into a bias of the scores: 0 where true, a large negative number elsewhere.

    The number is finite and fits `dtype`, so a query that may attend to nothing attends to
    everything equally; minus infinity would give NaN.
    """
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e9
    return (1.0 - ops.cast(mask, dtype)) * ops.cast(lowest, dtype)


def softmax(scores: Tensor) -> Tensor:
    """Apply softmax over the keys; return ones for a single key, where Keras would warn."""
    return ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)


def expand_mask(mask: Tensor, scores_shape: Shape) -> Tensor:
    """Return an attention mask as a bool tensor with the four axes of scores `(B, H, T, S)`.

    The mask is bool or integer (0 and 1), `(T, S)`, `(B, T, S)` or `(B, H, T, S)`, where an axis
    may have size 1. A float mask raises TypeError; a mask that does not broadcast to the scores
    raises ValueError. Axes of the scores with the unknown size None are not checked.
    """
    if not hasattr(mask, "dtype"):
        mask = ops.convert_to_tensor(mask)
    shape, dtype = tuple(mask.shape), keras.backend.standardize_dtype(mask.dtype)
    if dtype != "bool" and "int" not in dtype:
        raise TypeError(
            f"attention masks must be bool or integer (0 and 1), True where attending is allowed; "
            f"received a mask of dtype {dtype} and shape {shape}."
        )
    if len(shape) in (2, 3):  # one mask for all heads, or for all rows, too
        mask = mask[None, None] if len(shape) == 2 else mask[:, None]
    sizes = zip(mask.shape, scores_shape, strict=False)
    if len(mask.shape) != 4 or any(n not in (1, m, None) and m is not None for n, m in sizes):
        raise ValueError(
            f"attention masks must have shape (T, S), (B, T, S) or (B, H, T, S) and broadcast to "
            f"the attention scores (B, H, T, S) = {tuple(scores_shape)}; received shape {shape}. "
            f"A padding mask has shape (B, 1, S)."
        )
    return ops.cast(mask, "bool")


def padding_mask(token_ids: Tensor, pad_id: int) -> Tensor:
    """Return the mask of real tokens, bool `(B, 1, S)`, for token ids `(B, S)`.

    Example:
        >>> tt.padding_mask(np.array([[5, 6, 0]]), pad_id=0).numpy()
        array([[[ True,  True, False]]])
    """
    return ops.not_equal(token_ids, pad_id)[:, None, :]


def segment_mask(queries: Tensor, keys: Tensor) -> Tensor:
    """Return a mask of the same segment in packed rows (Raffel et al. 2020, section 3.1.1).

    Takes the segment ids of queries, int `(B, T)`, and of keys, int `(B, S)`, where 0 is padding;
    returns bool `(B, T, S)`.

    Example:
        >>> tt.segment_mask(np.array([[1, 2, 0]]), np.array([[1, 1, 2]])).numpy().astype(int)
        array([[[1, 1, 0],
                [0, 0, 1],
                [0, 0, 0]]])
    """
    same = ops.equal(queries[:, :, None], keys[:, None, :])
    return ops.logical_and(same, ops.not_equal(keys, 0)[:, None, :])


def causal_mask(length: Int) -> Tensor:
    """Return a mask of positions `0` to `i` for position `i` (Vaswani et al. 2017, section 3.2.3).

    The mask is the lower triangle, bool `(1, T, T)`, for a length T.

    Example:
        >>> tt.causal_mask(3).numpy().astype(int)
        array([[[1, 0, 0],
                [1, 1, 0],
                [1, 1, 1]]])
    """
    positions = ops.arange(length)
    return (positions[:, None] >= positions)[None]


def prefix_mask(segment_ids: Tensor) -> Tensor:
    """Return a mask of the whole prefix and, for generated positions, also of their past.

    `segment_ids` is 0 in the prefix (attended in both directions) and 1 at each position that is
    generated (attended from left to right): `cumsum(segment)[key] <= cumsum(segment)[query]`, as
    in UniLM (Dong et al. 2019, section 2.3). Takes int `(B, T)`, returns bool `(B, T, T)`.

    Example:
        >>> tt.prefix_mask(np.array([[0, 0, 1, 1]])).numpy().astype(int)
        array([[[1, 1, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 1]]])
    """
    groups = ops.cumsum(ops.cast(segment_ids, "int32"), axis=-1)
    return groups[:, None, :] <= groups[:, :, None]


def permutation_mask(ranks: Tensor) -> Tensor:
    """Return a mask of the tokens generated before each prediction (XLNet, Yang et al. 2019, 2.2).

    Row `i` predicts token `i + 1` of the sequence, and column `j` is token `j`. The row may attend
    to the column if token `j` is generated before token `i + 1`. `ranks = 0, 1, 2, …` gives the
    causal triangle. Returns bool `(B, T, T)`.

    The ranks, int `(B, T + 1)`, say when each token is generated, including the begin token
    (rank 0) and the end token.

    Example:
        >>> tt.permutation_mask(np.array([[0, 2, 1, 3]])).numpy().astype(int)
        array([[[1, 0, 1],
                [1, 0, 0],
                [1, 1, 1]]])
    """
    ranks = ops.convert_to_tensor(ranks)
    return ranks[:, None, :-1] < ranks[:, 1:, None]


def local_mask(length: Int, radius: int) -> Tensor:
    """Return a mask of positions at most `radius` away (Vaswani et al. 2017, section 4).

    The mask is bool `(1, T, T)` for a length T.

    Example:
        >>> tt.local_mask(4, radius=1).numpy().astype(int)
        array([[[1, 1, 0, 0],
                [1, 1, 1, 0],
                [0, 1, 1, 1],
                [0, 0, 1, 1]]])
    """
    if radius < 0:
        raise ValueError(f"radius must not be negative; received {radius}.")
    positions = ops.arange(length)
    return (ops.abs(positions[:, None] - positions) <= radius)[None]
