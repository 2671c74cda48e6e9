"""The connection around every sub-layer: normalise, drop out, add."""

import keras

from tf_transformer.layers.dropout import Dropout

# What the paper's own code used; Keras' default of 1e-3 is large beside small activations.
LAYER_NORM_EPSILON = 1e-6


def layer_norm(dtype, name):
    """Layer normalisation (Ba et al. 2016): biased variance, epsilon inside the root."""
    return keras.layers.LayerNormalization(epsilon=LAYER_NORM_EPSILON, dtype=dtype, name=name)


@keras.saving.register_keras_serializable(package="tf_transformer")
class Residual(keras.layers.Layer):
    """The residual connection of one sub-layer, normalised before it or after the sum.

    Post-norm, `LayerNorm(x + Dropout(f(x)))`, is the paper's (Vaswani et al. 2017, sections 3.1
    and 5.4); norm-first, `x + Dropout(f(LayerNorm(x)))`, needs less care in the warm-up (Xiong et
    al. 2020). Either is written `residual.leave(x, f(residual.enter(x)))`.

    Args:
        d_model: int, D.
        dropout_rate: float in [0, 1), dropout of the sub-layer's output.
        norm_first: bool, whether the sub-layer sees the normalised input.
    """

    def __init__(self, d_model, dropout_rate, norm_first, *, name=None, trainable=True, dtype=None):
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        self.d_model = d_model
        self.dropout_rate = dropout_rate
        self.norm_first = norm_first
        self.norm = layer_norm(self.dtype_policy, name="norm")
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, *_):
        self.norm.build((None, None, self.d_model))
        self.built = True

    def enter(self, x):
        """What the sub-layer sees of `x` `(B, T, D)`."""
        return self.norm(x) if self.norm_first else x

    def leave(self, x, sublayer_output, training=None):
        """Joins `x` and the sub-layer's output, both `(B, T, D)`."""
        x = x + self.dropout(sublayer_output, training=training)
        return x if self.norm_first else self.norm(x)

    def get_config(self):
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "dropout_rate": self.dropout_rate,
            "norm_first": self.norm_first,
        }
