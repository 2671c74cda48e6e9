"""Position-wise functions on matrices of rank 2.

TensorFlow runs a product with a rank-2 matrix, its bias and its activation as one operation; with
rank 3 it needs four or more.
"""

from collections.abc import Callable

from keras import ops

from tf_transformer.layers.base import Tensor


def on_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Applies a function that treats each position alone.

    Args:
        function: maps a tensor `(N, D)` to a tensor `(N, E)`.
        x: tensor `(..., D)`.

    Returns:
        tensor `(..., E)`.
    """
    if len(x.shape) == 2:
        return function(x)
    rows = function(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
