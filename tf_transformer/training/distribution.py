"""Where training runs, one device or many, and what the replicas must add up."""

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


def sum_over_replicas(value):
    """The sum of a tensor over all replicas; outside of `strategy.run`, the tensor itself.

    Args:
        value: float tensor, of one shape on every replica.

    Returns:
        a tensor like it.
    """
    replica = tf.distribute.get_replica_context()  # None while Keras asks for shapes alone
    if replica is None or replica.num_replicas_in_sync == 1:
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)
