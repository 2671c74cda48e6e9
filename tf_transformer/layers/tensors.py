"""The types of tensors and shapes in signatures, and how layers build and call their parts."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

# A tensor of the Keras backend, or an array that it converts.
Tensor = Any
# An int, or an int scalar tensor where it is known in the graph only.
Int = int | Tensor
# Sizes of the axes, None where unknown.
Shape = Sequence[int | None]
# A dtype, a policy or the name of one; None is the global policy.
DType = str | keras.DTypePolicy | None


def built(layer: keras.Layer, *shapes: Shape) -> keras.Layer:
    """Builds a layer that is not built yet, such as one that is shared, and returns it."""
    if not layer.built:
        layer.build(*shapes)
    return layer


def on_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Applies a position-wise function to `(..., D)` as to a matrix `(N, D)`.

    TensorFlow runs a product with a rank-2 matrix, its bias and its activation as one operation;
    with rank 3 it needs four or more.

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
