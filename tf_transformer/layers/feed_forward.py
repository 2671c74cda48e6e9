"""The position-wise feed-forward network."""

from collections.abc import Callable
from typing import Any

import keras

from tf_transformer.layers.base import DType, HiddenStateLayer, Shape, Tensor, ensure_built
from tf_transformer.layers.rows import on_rows


@keras.saving.register_keras_serializable(package="tf_transformer")
class FeedForward(HiddenStateLayer):
    """`f(x W1 + b1) W2 + b2` at each position (Vaswani et al. 2017, section 3.3).

    Args:
        d_model: D, width of input and output.
        d_ff: width of the hidden layer.
        activation: f, a function of `keras.activations` or the name of one; the paper's is
            `"relu"`, `max(0, x)`.
        name, trainable, dtype: as in `keras.layers.Layer`.

    Call arguments:
        x: float tensor `(..., D)`.

    Returns:
        float tensor `(..., D)`.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: Callable[[Tensor], Tensor] | str = "relu",
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DType = None,
    ) -> None:
        super().__init__(d_model, name=name, trainable=trainable, dtype=dtype)
        self.d_ff = d_ff
        self.activation = activation
        self.expand = keras.layers.Dense(
            d_ff, activation=activation, dtype=self.dtype_policy, name="expand"
        )
        self.contract = keras.layers.Dense(d_model, dtype=self.dtype_policy, name="contract")

    def build(self, x_shape: Shape) -> None:
        self.check_shapes(rank=None, x=x_shape)
        ensure_built(self.expand, (None, self.d_model))
        ensure_built(self.contract, (None, self.d_ff))

    def call(self, x: Tensor) -> Tensor:
        self.check_shapes(rank=None, x=x.shape)
        return on_rows(lambda rows: self.contract(self.expand(rows)), x)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "d_ff": self.d_ff,
            "activation": keras.activations.serialize(self.expand.activation),
        }
