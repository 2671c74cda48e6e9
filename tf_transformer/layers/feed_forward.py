"""The position-wise feed-forward network."""

import keras

from tf_transformer.layers.rows import on_rows


@keras.saving.register_keras_serializable(package="tf_transformer")
class FeedForward(keras.layers.Layer):
    """`max(0, x W1 + b1) W2 + b2` at each position (Vaswani et al. 2017, section 3.3).

    Args:
        d_model: int, D, width of input and output.
        d_ff: int, width of the hidden layer.

    Call arguments:
        x: tensor `(B, T, D)`.

    Returns:
        tensor `(B, T, D)`.
    """

    def __init__(self, d_model, d_ff, *, name=None, trainable=True, dtype=None):
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        self.d_model = d_model
        self.d_ff = d_ff
        self.expand = keras.layers.Dense(
            d_ff, activation="relu", dtype=self.dtype_policy, name="expand"
        )
        self.contract = keras.layers.Dense(d_model, dtype=self.dtype_policy, name="contract")

    def build(self, *_):
        self.expand.build((None, None, self.d_model))
        self.contract.build((None, None, self.d_ff))
        self.built = True

    def call(self, x):
        return on_rows(lambda rows: self.contract(self.expand(rows)), x)

    def get_config(self):
        return {**super().get_config(), "d_model": self.d_model, "d_ff": self.d_ff}
