"""The residual connection around each sub-layer."""

from typing import Any

import keras

from tf_transformer.layers.base import Layer, Shape, Tensor
from tf_transformer.layers.norm import LayerNorm


class Residual(Layer):
    """Dropout, residual connection and layer normalisation around one sub-layer.

    Post-norm, `LayerNorm(x + Dropout(f(x)))`, is the paper's (Vaswani et al. 2017, sections 3.1
    and 5.4). Pre-norm, `x + Dropout(f(LayerNorm(x)))`, needs less care in the warm-up (Xiong et
    al. 2020). Both are `residual.post(x, f(residual.pre(x)))`; a call is the same as `post`.

    Args:
        d_model: D.
        dropout_rate: dropout of the sub-layer's output, in [0, 1).
        norm_first: whether to normalise the sub-layer's input (pre-norm) or the sum (post-norm).
        layer_norm_epsilon: added to the variance. The default is that of the paper's own code;
            Keras' default of 1e-3 is large beside small activations.

    Example:
        >>> residual, sublayer = tt.Residual(d_model=8), tt.FeedForward(d_model=8, d_ff=16)
        >>> x = np.ones((1, 5, 8), "float32")
        >>> residual.post(x, sublayer(residual.pre(x))).shape
        TensorShape([1, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        dropout_rate: float = 0.0,
        norm_first: bool = True,
        layer_norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.d_model, self.dropout_rate, self.norm_first = d_model, dropout_rate, norm_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm = LayerNorm(epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="norm")
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, x_shape: Shape, sublayer_output_shape: Shape | None = None) -> None:
        self.norm.build((None, None, self.d_model))

    def pre(self, x: Tensor) -> Tensor:
        """Return the sub-layer's input `(..., D)`."""
        return self.norm(x) if self.norm_first else x

    def post(self, x: Tensor, sublayer_output: Tensor, training: bool | None = None) -> Tensor:
        """Add the sub-layer's output, after dropout, to `x` `(..., D)`; normalise if post-norm."""
        x = x + self.dropout(sublayer_output, training=training)
        return x if self.norm_first else self.norm(x)

    def call(self, x: Tensor, sublayer_output: Tensor, training: bool | None = None) -> Tensor:
        return self.post(x, sublayer_output, training)
