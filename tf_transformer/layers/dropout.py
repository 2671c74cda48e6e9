"""Dropout that draws half the random bits."""

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="tf_transformer")
class Dropout(keras.layers.Dropout):
    """Drops numbers at a rate and scales up the others (Srivastava et al. 2014).

    Random bits are what dropout costs on a CPU. Keras draws 32 for each number; 16 do, with which
    the rate is a multiple of 2^-16, and the scale the one of that rate.

    Args:
        rate: float in [0, 1).
        seed: int, or None for one of chance.
        name, trainable, dtype: as for any layer.

    Call arguments:
        inputs: float tensor of rank 1 or more.
        training: bool; without it nothing is dropped.

    Returns:
        tensor of the shape and dtype of `inputs`.

    Raises:
        ValueError: `rate` is not in [0, 1).
    """

    def __init__(self, rate, seed=None, *, name=None, trainable=True, dtype=None):
        if not 0 <= rate < 1:
            raise ValueError(f"rate must be at least 0 and less than 1; received rate={rate}.")
        super().__init__(rate, seed=seed, name=name, trainable=trainable, dtype=dtype)

    def call(self, inputs, training=False):
        if not training or self.rate == 0:
            return inputs
        *others, width = ops.shape(inputs)
        half = -(-width // 2)
        pairs = keras.random.randint(
            (*others, half, 1), -(2**31), 2**31 - 1, seed=self.seed_generator
        )
        bits = ops.reshape(ops.view(pairs, "uint16"), (*others, 2 * half))[..., :width]
        num_dropped = min(round(self.rate * 2**16), 2**16 - 1)
        kept = ops.cast(bits >= np.uint16(num_dropped), inputs.dtype)
        return inputs * (kept * (2**16 / (2**16 - num_dropped)))

    def get_config(self):
        config = super().get_config()
        del config["noise_shape"]
        return config
