"""The base class of the layers, the types of their tensors, and helpers that call layers."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import keras
from keras import ops

# A tensor of the Keras backend, or an array that it converts.
Tensor = Any
# An int, or an int scalar tensor if the value is known only when a graph runs.
Int = int | Tensor
# A function of `keras.activations`, or the name of one.
Activation = Callable[[Tensor], Tensor] | str
# Sizes of the axes, None where unknown.
Shape = Sequence[int | None]


class Registered:
    """Registers the classes of this package that inherit from it with Keras, for saved models.

    A class that a user derives from these registers itself, or not, as any other.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("tf_transformer."):
            keras.saving.register_keras_serializable("tf_transformer")(cls)


class Layer(Registered, keras.layers.Layer):
    """A layer whose config is the constructor's arguments, read from attributes of the same names.

    All layers also take the arguments of `keras.layers.Layer`. They pass on implicit Keras masks
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

    def get_build_config(self) -> dict[str, Any]:
        return {**(super().get_build_config() or {}), "quantized": quantized_parts(self)}

    def build_from_config(self, config: dict[str, Any]) -> None:
        super().build_from_config(config)
        quantize_parts(self, config.get("quantized", {}))


def quantized_parts(layer: keras.Layer) -> dict[str, str]:
    """Return the names of the policies of the quantized layers in a layer, by their numbers."""
    parts = enumerate(layer._flatten_layers(include_self=False))
    return {str(n): each.dtype_policy.name for n, each in parts if each.quantization_mode}


def quantize_parts(layer: keras.Layer, policies: Mapping[str, str]) -> None:
    """Quantize the layers in a layer, which is built, to policies from `quantized_parts`."""
    for number, each in enumerate(layer._flatten_layers(include_self=False)):
        if str(number) in policies:
            each.dtype_policy = policies[str(number)]


def built(layer: keras.Layer, *shapes: Shape) -> keras.Layer:
    """Build the layer unless it is already built, as a shared layer may be, and return it."""
    if not layer.built:
        layer.build(*shapes)
    return layer


def require_sizes(embedding: keras.layers.Embedding, vocab_size: int, d_model: int) -> None:
    """Raise a `ValueError` unless a shared embedding has V rows of D numbers."""
    sizes = embedding.input_dim, embedding.output_dim
    if sizes != (vocab_size, d_model):
        raise ValueError(f"embedding must have sizes {(vocab_size, d_model)}; it has {sizes}.")


def on_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function of rows `(N, D)` to a tensor `(..., D)`, and return `(..., E)`.

    TensorFlow runs a product of rank 2, its bias and its activation as one operation; a product
    of rank 3 needs four operations or more.
    """
    if len(x.shape) == 2:
        return function(x)
    rows = function(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
