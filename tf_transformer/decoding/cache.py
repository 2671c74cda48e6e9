"""Decoding caches: nested dicts of tensors whose axis 0 is the row."""

import tensorflow as tf


def open_shapes(structure):
    """The shapes a loop may give the tensors of `structure`: rows and growing axes are open.

    An axis that is empty at the start is one that grows by a position a step.

    Args:
        structure: nested structure of tensors.

    Returns:
        the same structure of `tf.TensorShape`.
    """

    def open_shape(tensor):
        sizes = tensor.shape.as_list()
        return tf.TensorShape(
            [None if axis == 0 or size == 0 else size for axis, size in enumerate(sizes)]
        )

    return tf.nest.map_structure(open_shape, structure)
