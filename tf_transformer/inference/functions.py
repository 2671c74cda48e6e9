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


def shared_function(*specs: tf.TensorSpec) -> Callable:
    """Return a decorator like `function`, for a function that several places call.

    A copy in each place would double the time that TensorFlow takes to load the graph.
    """
    return functools.partial(not_inlined, input_signature=specs)
