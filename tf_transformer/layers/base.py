"""The base class of the layers, the types of their tensors, and how they build and call parts."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
from keras import ops

# A tensor of the Keras backend, or an array that it converts.
Tensor = Any
# An int, or an int scalar tensor where it is known in the graph only.
Int = int | Tensor
# Sizes of the axes, None where unknown.
Shape = Sequence[int | None]


class Layer(keras.layers.Layer):
    """A layer that Keras saves by its constructor's arguments: attributes of the same names.

    All layers take the arguments of `keras.layers.Layer`, too, and pass on implicit Keras masks
    without applying them. `training` says whether dropout is applied.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def get_config(self) -> dict[str, Any]:
        kinds = [kind for kind in type(self).__mro__[::-1] if issubclass(kind, Layer)]
        names = [name for kind in kinds for name in inspect.signature(kind.__init__).parameters]
        arguments = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return {**keras.saving.serialize_keras_object(arguments), **super().get_config()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**keras.saving.deserialize_keras_object(config))


def built(layer: keras.Layer, *shapes: Shape) -> keras.Layer:
    """Build a layer that is not built yet, such as one that is shared, and return it."""
    if not layer.built:
        layer.build(*shapes)
    return layer


def on_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a position-wise function to `(..., D)` as to a matrix `(N, D)`: returns `(..., E)`.

    TensorFlow runs a product with a rank-2 matrix, its bias and its activation as one operation;
    with rank 3 it needs four or more.
    """
    if len(x.shape) == 2:
        return function(x)
    rows = function(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
