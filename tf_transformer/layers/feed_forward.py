"""The position-wise feed-forward network."""

from typing import Any

import keras

from tf_transformer.layers.base import Activation, Layer, Shape, Tensor, on_rows


class FeedForward(Layer):
    """`f(x W1 + b1) W2 + b2` at each position (Vaswani et al. 2017, section 3.3).

    Args:
        d_model, d_ff: D, the width of input and output, and the width of the hidden layer.
        activation: f, a function of `keras.activations` or the name of one; the paper's is
            `"relu"`, `max(0, x)`.

    Maps a float tensor `(..., D)` to one of the same shape.

    Example:
        >>> tt.FeedForward(d_model=8, d_ff=32)(np.ones((1, 5, 8))).shape
        TensorShape([1, 5, 8])
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: Activation = "relu", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.d_model, self.d_ff, self.activation = d_model, d_ff, activation
        dtype = self.dtype_policy
        self.expand = keras.layers.Dense(d_ff, activation, dtype=dtype, name="expand")
        self.contract = keras.layers.Dense(d_model, dtype=dtype, name="contract")

    def build(self, x_shape: Shape) -> None:
        self.expand.build((None, self.d_model))
        self.contract.build((None, self.d_ff))

    def call(self, x: Tensor) -> Tensor:
        return on_rows(lambda rows: self.contract(self.expand(rows)), x)
