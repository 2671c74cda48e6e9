"""Where training runs: one device or many."""

import tensorflow as tf


def default_strategy():
    """`MirroredStrategy` over every visible GPU; where there is one device, that device.

    Returns:
        `tf.distribute.Strategy`; create and compile the model in its `scope()`.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])
    # TensorFlow's own default puts everything on the one device, without a strategy's cost.
    return tf.distribute.get_strategy()
