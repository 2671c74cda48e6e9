"""Attention masks: boolean, `True` where a query may attend to a key.

Every mask has a shape that broadcasts to `(B, T, S)`: batch, query positions, key positions.
Masks are combined with `&` and are always passed as arguments. The same stack of layers becomes
an encoder, a causal, a prefix or a permutation language model by its mask alone.
"""

from keras import ops


def padding_mask(token_ids, pad_id):
    """Lets every query attend to the real tokens only.

    Args:
        token_ids: int tensor `(B, S)`.
        pad_id: int, the id of padding.

    Returns:
        bool tensor `(B, 1, S)`.
    """
    return ops.expand_dims(ops.not_equal(token_ids, pad_id), axis=1)


def causal_mask(length):
    """Lets position `i` attend to the positions `0 … i` (Vaswani et al. 2017, section 3.2.3).

    Args:
        length: int or int scalar tensor, T.

    Returns:
        bool tensor `(1, T, T)`, the lower triangle.
    """
    positions = ops.arange(length)
    return ops.expand_dims(positions[:, None] >= positions[None, :], axis=0)


def prefix_mask(segment_ids):
    """Lets a position attend to its own segment's past and to everything in earlier prefixes.

    `segment_ids` is 0 in the prefix (attended in both directions) and 1 at each position that is
    generated (attended from left to right): `cumsum(segment)[key] <= cumsum(segment)[query]`, as
    in UniLM (Dong et al. 2019, section 2.3).

    Args:
        segment_ids: int tensor `(B, T)` of zeros and ones.

    Returns:
        bool tensor `(B, T, T)`.
    """
    groups = ops.cumsum(segment_ids, axis=-1)
    return groups[:, None, :] <= groups[:, :, None]


def permutation_mask(ranks):
    """Lets each prediction see the tokens generated before it (XLNet, Yang et al. 2019, 2.2).

    Row `i` predicts token `i + 1` of the sequence, column `j` is token `j`; the row may attend to
    the column when the column's token is generated earlier. `ranks = 0, 1, 2, …` gives the causal
    triangle.

    Args:
        ranks: int tensor `(B, T + 1)`, when each token is generated, the begin token (rank 0) and
            the end token included.

    Returns:
        bool tensor `(B, T, T)`.
    """
    return ranks[:, None, :-1] < ranks[:, 1:, None]


def local_mask(length, radius):
    """Lets a position attend to its neighbours at most `radius` away (Vaswani et al., section 4).

    Args:
        length: int or int scalar tensor, T.
        radius: int, how far a position sees to each side.

    Returns:
        bool tensor `(1, T, T)`.
    """
    positions = ops.arange(length)
    return ops.expand_dims(ops.abs(positions[:, None] - positions[None, :]) <= radius, axis=0)
