"""Assigning the arrays of another engine to the weights of a model."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from tf_transformer.importing.tensors import ForeignModelError

# A bias that no other logit outweighs. It is finite, so that sums and half precision stay exact.
NEVER = -1e4


def put(variables: Sequence[Any], arrays: Sequence[np.ndarray], name: str) -> None:
    """Assign arrays to variables; `name` is the foreign one, for messages."""
    for variable, array in zip(variables, arrays, strict=True):
        if variable.shape != array.shape:
            raise ForeignModelError(
                f"{name} has the size {array.shape}, but the configuration of the model needs "
                f"{tuple(variable.shape)}. Files of different models are mixed."
            )
        variable.assign(array)


def put_stack(
    stack: Any, parts: Mapping[str, Sequence[str]], weights_of: Callable[..., Sequence[np.ndarray]]
) -> None:
    """Assign the weights of all layers of a stack.

    Args:
        stack: An `Encoder` or a `Decoder`.
        parts: The foreign names of each part of a layer, such as `self_residual.norm`; projections
            with several are joined in this order. Cross-attention is that of a decoder.
        weights_of: Returns kernel (inputs, outputs) and bias, or scale and bias of a norm, given
            the name of the stack, the number of a layer and a foreign name.
    """
    for index, layer in enumerate(stack.layers):
        for part, names in parts.items():
            if part.startswith("cross_") and not hasattr(layer, "cross_attention"):
                continue
            pairs = [weights_of(stack.name, index, name) for name in names]
            arrays = [np.concatenate(arrays, axis=-1) for arrays in zip(*pairs, strict=True)]
            put(attrgetter(part)(layer).weights, arrays, f"layer {index}, {names[0]}")
