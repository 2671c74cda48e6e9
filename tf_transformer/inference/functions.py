"""Decorators that make functions of a graph."""

import functools
from collections.abc import Callable

import tensorflow as tf

# If a function is inlined, each of its operations costs time where it is not called, too.
not_inlined = functools.partial(
    tf.function, autograph=False, experimental_attributes={"_noinline": True}
)


def function(*specs: tf.TensorSpec) -> Callable:
    """Return a decorator that makes a method a function of tensors."""
    # Without AutoGraph, loops are `tf.while_loop`, and run time needs no source files.
    return functools.partial(tf.function, input_signature=specs, autograph=False)
