"""Attention masks: boolean, `True` where a query may attend to a key.

Every mask has a shape that broadcasts to `(B, T, S)`: batch, query positions, key positions.
Masks are combined with `&` and are always passed as arguments. The same stack of layers becomes
an encoder, a causal, a prefix or a permutation language model by its mask alone.
"""

import keras
from keras import ops

from tf_transformer.layers.base import Shape, Tensor


def expand_mask(mask: Tensor, scores_shape: Shape) -> Tensor:
    """Checks an attention mask and gives it the four axes of attention scores.

    Only static sizes are checked.

    Args:
        mask: bool or integer (0 and 1) tensor `(T, S)`, `(B, T, S)` or `(B, H, T, S)`. An axis may
            have size 1, such as T in a padding mask `(B, 1, S)`.
        scores_shape: `(B, H, T, S)`, None where unknown.

    Returns:
        bool tensor of rank 4 that broadcasts to the scores.

    Raises:
        TypeError: the mask is a float tensor.
        ValueError: the mask's rank is not 2, 3 or 4, or it does not broadcast to the scores.
    """
    if not hasattr(mask, "dtype"):
        mask = ops.convert_to_tensor(mask)
    shape, dtype = tuple(mask.shape), keras.backend.standardize_dtype(mask.dtype)
    if dtype != "bool" and "int" not in dtype:
        raise TypeError(
            f"attention masks must be bool or integer (0 and 1), True where attending is allowed; "
            f"received a mask of dtype {dtype} and shape {shape}."
        )
    expanded = {2: (1, 1, *shape), 3: (*shape[:1], 1, *shape[1:]), 4: shape}.get(len(shape))
    if expanded is None or not all(
        size in (None, 1, wanted) or wanted is None
        for size, wanted in zip(expanded, scores_shape, strict=True)
    ):
        raise ValueError(
            f"attention masks must have shape (T, S), (B, T, S) or (B, H, T, S) and broadcast to "
            f"the attention scores (B, H, T, S) = {tuple(scores_shape)}; received a mask of shape "
            f"{shape} and dtype {dtype}. A padding mask has shape (B, 1, S)."
        )
    mask = ops.cast(mask, "bool")
    if len(shape) == 2:
        return mask[None, None]
    return mask[:, None] if len(shape) == 3 else mask


def padding_mask(token_ids: Tensor, pad_id: int) -> Tensor:
    """Lets every query attend to the real tokens only.

    Args:
        token_ids: int tensor `(B, S)`.
        pad_id: the id of padding.

    Returns:
        bool tensor `(B, 1, S)`.

    Raises:
        ValueError: the ids are not of rank 2.
    """
    token_ids = _checked_rows("token_ids", token_ids)
    return ops.expand_dims(ops.not_equal(token_ids, pad_id), axis=1)


def causal_mask(length: int | Tensor) -> Tensor:
    """Lets position `i` attend to positions `0` to `i` (Vaswani et al. 2017, section 3.2.3).

    Args:
        length: int or int scalar tensor, T.

    Returns:
        bool tensor `(1, T, T)`, the lower triangle.
    """
    positions = ops.arange(length)
    return ops.expand_dims(positions[:, None] >= positions[None, :], axis=0)


def prefix_mask(segment_ids: Tensor) -> Tensor:
    """Lets a position attend to its own segment's past and to everything in earlier prefixes.

    `segment_ids` is 0 in the prefix (attended in both directions) and 1 at each position that is
    generated (attended from left to right): `cumsum(segment)[key] <= cumsum(segment)[query]`, as
    in UniLM (Dong et al. 2019, section 2.3).

    Args:
        segment_ids: int tensor `(B, T)` of zeros and ones.

    Returns:
        bool tensor `(B, T, T)`.

    Raises:
        ValueError: the ids are not of rank 2.
    """
    segment_ids = _checked_rows("segment_ids", segment_ids)
    groups = ops.cumsum(segment_ids, axis=-1)
    return groups[:, None, :] <= groups[:, :, None]


def permutation_mask(ranks: Tensor) -> Tensor:
    """Lets each prediction see the tokens generated before it (XLNet, Yang et al. 2019, 2.2).

    Row `i` predicts token `i + 1` of the sequence, column `j` is token `j`; the row may attend to
    the column when the column's token is generated earlier. `ranks = 0, 1, 2, …` gives the causal
    triangle.

    Args:
        ranks: int tensor `(B, T + 1)`, when each token is generated, the begin token (rank 0) and
            the end token included.

    Returns:
        bool tensor `(B, T, T)`.

    Raises:
        ValueError: the ranks are not of rank 2.
    """
    ranks = _checked_rows("ranks", ranks)
    return ranks[:, None, :-1] < ranks[:, 1:, None]


def local_mask(length: int | Tensor, radius: int) -> Tensor:
    """Lets a position attend to its neighbours at most `radius` away (Vaswani et al., section 4).

    Args:
        length: int or int scalar tensor, T.
        radius: how far a position sees to each side.

    Returns:
        bool tensor `(1, T, T)`.
    """
    positions = ops.arange(length)
    return ops.expand_dims(ops.abs(positions[:, None] - positions[None, :]) <= radius, axis=0)


def _checked_rows(name: str, rows: Tensor) -> Tensor:
    """The tensor, or an array made of a list; it must have a row for each sentence."""
    rows = rows if hasattr(rows, "shape") else ops.convert_to_tensor(rows)
    if len(rows.shape) != 2:
        raise ValueError(
            f"{name} must have two axes, a row for each sentence; "
            f"received shape {tuple(rows.shape)}."
        )
    return rows
