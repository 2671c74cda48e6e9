"""Sentences as rows of one matrix.

Of a product with a matrix of rank 2, its bias and its activation TensorFlow makes one operation; of
rank 3, four or more.
"""

from keras import ops


def on_rows(function, x):
    """Applies what treats each position alone.

    Args:
        function: from a tensor `(N, D)` to a tensor `(N, E)`.
        x: tensor `(B, T, D)`, or `(N, D)` already.

    Returns:
        tensor `(B, T, E)`, or `(N, E)`.
    """
    if len(x.shape) == 2:
        return function(x)
    rows = function(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
