"""Tests of the shape invariants of decoding caches: axes that grow are open, no others."""

import tensorflow as tf

from tf_transformer.decoding.cache import open_shapes


def test_only_the_first_and_empty_axes_are_open():
    structure = {
        "keys": tf.zeros([3, 2, 0, 4]),
        "nested": [tf.zeros([3]), (tf.zeros([3, 5]), tf.zeros([3, 0, 0]))],
    }
    shapes = open_shapes(structure)
    assert shapes.keys() == {"keys", "nested"}
    assert isinstance(shapes["nested"], list) and isinstance(shapes["nested"][1], tuple)
    flat = [shapes["keys"], shapes["nested"][0], *shapes["nested"][1]]
    assert [shape.as_list() for shape in flat] == [
        [None, 2, None, 4],
        [None],
        [None, 5],
        [None, None, None],
    ]


def test_scalars_and_open_axes_stay_unchanged():
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, None, 4]), tf.TensorSpec([])])
    def trace(tensor, scalar):
        shapes.extend(open_shapes([tensor, scalar]))
        return tensor

    trace.get_concrete_function()
    assert [shape.as_list() for shape in shapes] == [[None, None, 4], []]


def test_a_first_axis_of_size_0_or_1_is_open_too():
    assert open_shapes(tf.zeros([0, 2])).as_list() == [None, 2]
    assert open_shapes(tf.zeros([1, 1])).as_list() == [None, 1]
