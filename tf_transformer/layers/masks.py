"""Attention masks: boolean, `True` where a query may attend to a key.

Every mask has a shape that broadcasts to `(B, T, S)`: batch, query positions, key positions.
Masks are combined with `&` and are always passed as arguments. The same stack of layers becomes
an encoder, a causal, a prefix or a permutation language model by its mask alone.
"""

import keras
from keras import ops

from tf_transformer.layers.base import Int, Shape, Tensor


def attention_bias(mask: Tensor, dtype: str) -> Tensor:
    """Turn a mask into a bias of the scores: 0 where true, a large negative number elsewhere.

    The number is finite and fits `dtype`: a query that may attend to nothing attends to everything
    equally, where minus infinity would give NaN.
    """
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e9
    return (1.0 - ops.cast(mask, dtype)) * ops.cast(lowest, dtype)


def softmax(scores: Tensor) -> Tensor:
    """Apply softmax over the keys; a single key, about which Keras would warn, has weight 1."""
    return ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)


def expand_mask(mask: Tensor, scores_shape: Shape) -> Tensor:
    """Give an attention mask the axes of attention scores `(B, H, T, S)`; return a bool tensor.

    The mask is bool or integer (0 and 1), `(T, S)`, `(B, T, S)` or `(B, H, T, S)`, where an axis
    may have size 1. A TypeError refuses a float mask, a ValueError one that does not broadcast to
    the scores; sizes of the scores that are not known, None, are not checked.
    """
    if not hasattr(mask, "dtype"):
        mask = ops.convert_to_tensor(mask)
    shape, dtype = tuple(mask.shape), keras.backend.standardize_dtype(mask.dtype)
    if dtype != "bool" and "int" not in dtype:
        raise TypeError(
            f"attention masks must be bool or integer (0 and 1), True where attending is allowed; "
            f"received a mask of dtype {dtype} and shape {shape}."
        )
    expanded = {2: (1, 1, *shape), 3: (*shape[:1], 1, *shape[1:]), 4: shape}.get(len(shape), ())
    if not expanded or any(
        size not in (None, 1, wanted) and wanted is not None
        for size, wanted in zip(expanded, scores_shape, strict=True)
    ):
        raise ValueError(
            f"attention masks must have shape (T, S), (B, T, S) or (B, H, T, S) and broadcast to "
            f"the attention scores (B, H, T, S) = {tuple(scores_shape)}; received shape {shape}. "
            f"A padding mask has shape (B, 1, S)."
        )
    mask = ops.cast(mask, "bool")
    if len(shape) == 2:
        return mask[None, None]
    return mask[:, None] if len(shape) == 3 else mask


def padding_mask(token_ids: Tensor, pad_id: int) -> Tensor:
    """Lets every query attend to the real tokens only: bool `(B, 1, S)` of ids `(B, S)`."""
    return ops.not_equal(token_ids, pad_id)[:, None, :]


def causal_mask(length: Int) -> Tensor:
    """Lets position `i` attend to positions `0` to `i` (Vaswani et al. 2017, section 3.2.3).

    Returns the lower triangle, bool `(1, T, T)`, of a length T.
    """
    positions = ops.arange(length)
    return (positions[:, None] >= positions)[None]


def prefix_mask(segment_ids: Tensor) -> Tensor:
    """Lets a position attend to its own segment's past and to everything in earlier prefixes.

    `segment_ids` is 0 in the prefix (attended in both directions) and 1 at each position that is
    generated (attended from left to right): `cumsum(segment)[key] <= cumsum(segment)[query]`, as
    in UniLM (Dong et al. 2019, section 2.3). Takes int `(B, T)`, returns bool `(B, T, T)`.
    """
    groups = ops.cumsum(segment_ids, axis=-1)
    return groups[:, None, :] <= groups[:, :, None]


def permutation_mask(ranks: Tensor) -> Tensor:
    """Lets each prediction see the tokens generated before it (XLNet, Yang et al. 2019, 2.2).

    Row `i` predicts token `i + 1` of the sequence, column `j` is token `j`; the row may attend to
    the column when the column's token is generated earlier. `ranks = 0, 1, 2, …` gives the causal
    triangle. Returns bool `(B, T, T)`.

    The ranks, int `(B, T + 1)`, say when each token is generated, the begin token (rank 0) and the
    end token included.
    """
    ranks = ops.convert_to_tensor(ranks)
    return ranks[:, None, :-1] < ranks[:, 1:, None]


def local_mask(length: Int, radius: int) -> Tensor:
    """Lets a position attend to its neighbours at most `radius` away (Vaswani et al., section 4).

    Returns bool `(1, T, T)` of a length T.
    """
    positions = ops.arange(length)
    return (ops.abs(positions[:, None] - positions) <= radius)[None]
