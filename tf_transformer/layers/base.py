"""What the layers share: the types of their signatures, and the checks of their inputs."""

from collections.abc import Sequence
from typing import Any

import keras

# A tensor of the Keras backend, or an array that it converts.
Tensor = Any
# Sizes of the axes, None where unknown.
Shape = Sequence[int | None]
# A dtype, a policy or the name of one; None is the global policy.
DType = str | keras.DTypePolicy | None


class HiddenStateLayer(keras.layers.Layer):
    """Base class of the layers over hidden states `(B, T, D)`.

    Masks are call arguments. An implicit Keras mask of the first input is passed on to the output,
    but no layer applies it.

    Args:
        d_model: D.
        name: the layer's name.
        trainable: whether the weights are trained.
        dtype: dtype policy.
    """

    def __init__(
        self,
        d_model: int,
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DType = None,
    ) -> None:
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        self.d_model = d_model
        self.supports_masking = True

    def check_shapes(self, rank: int | None = 3, **shapes: Shape | None) -> None:
        """Raises a `ValueError` for a shape whose rank or last axis does not fit.

        Args:
            rank: the rank that is expected; None for any.
            **shapes: the static shape of each input by the input's name; None is not checked.
        """
        for name, shape in shapes.items():
            if shape is None:
                continue
            shape = tuple(shape)
            right_rank = len(shape) == rank if rank else len(shape) > 1
            if not right_rank or shape[-1] not in (None, self.d_model):
                axes = "batch, length" if rank else "..."
                raise ValueError(
                    f"{type(self).__name__} needs {name} of shape ({axes}, d_model={self.d_model});"
                    f" received shape {shape}."
                )

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return tuple(x_shape)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traced, because `return_attention_scores` adds outputs to `compute_output_shape`.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def ensure_built(layer: keras.Layer, *shapes: Shape) -> None:
    """Builds a layer that is not built yet."""
    if not layer.built:
        layer.build(*shapes)
