"""Keras' own test of a layer, for every public layer."""

import inspect

import keras
import numpy as np
import pytest
from keras.src.testing import TestCase

import tf_transformer.layers as layers_module
from tf_transformer.layers import (
    AdditiveAttention,
    CausalSelfAttention,
    CrossAttention,
    Decoder,
    DecoderLayer,
    DotAttention,
    Encoder,
    EncoderLayer,
    FeedForward,
    GeneralAttention,
    GlobalSelfAttention,
    Maxout,
    MultiHeadAttention,
    OutputProjection,
    PositionalEmbedding,
    PredictedWindow,
    PrefixLayer,
    PrefixSelfAttention,
    PrefixStack,
    Residual,
    RestrictedCausalSelfAttention,
    RestrictedSelfAttention,
)
from tf_transformer.layers.base import HiddenStateLayer

X, CONTEXT = (2, 5, 12), (2, 4, 12)
ATTENTION = {"num_heads": 3, "d_model": 12, "dropout_rate": 0.1}
BLOCK = {
    "d_model": 12, "num_heads": 3, "d_ff": 20, "dropout_rate": 0.1, "attention_dropout_rate": 0.1,
}  # fmt: skip
# A projection has a kernel and a bias, a norm has gamma and beta.
ENCODER_WEIGHTS, DECODER_WEIGHTS = 2 * 2 + 2 * 2 + 2 * 2, 2 * 2 + 3 * 2 + 2 * 2 + 3 * 2


def arguments(init_kwargs, input_shape, weights, seeds, **others):
    """Arguments of Keras' test; the output has the shape of the first input."""
    first = next(iter(input_shape.values())) if isinstance(input_shape, dict) else input_shape
    return {
        "init_kwargs": init_kwargs,
        "input_shape": input_shape,
        "expected_output_shape": first,
        "expected_num_trainable_weights": weights,
        "expected_num_non_trainable_weights": 0,
        "expected_num_seed_generators": seeds,
        "supports_masking": True,
        # Keras trains on inputs of one argument only.
        "run_training_check": not isinstance(input_shape, dict),
        **others,
    }


def stacked(layer_class):
    # Keras creates the stack several times, of the same layers: the first unbuilt, then built.
    return {"layers": [layer_class(**BLOCK), layer_class(**BLOCK)]}


QUERY_AND_CONTEXT = {"query_shape": X, "context_shape": CONTEXT}
WIDER_CONTEXT = {"query_shape": X, "context_shape": (2, 4, 14)}
X_AND_CONTEXT = {"x_shape": X, "context_shape": CONTEXT}
X_AND_OUTPUT = {"x_shape": X, "sublayer_output_shape": X}
CASES = {
    MultiHeadAttention: arguments(ATTENTION, QUERY_AND_CONTEXT, 6, 1),
    CrossAttention: arguments(ATTENTION, QUERY_AND_CONTEXT, 6, 1),
    GlobalSelfAttention: arguments(ATTENTION, X, 4, 1),
    CausalSelfAttention: arguments(ATTENTION, X, 4, 1),
    RestrictedSelfAttention: arguments({**ATTENTION, "radius": 2}, X, 4, 1),
    RestrictedCausalSelfAttention: arguments({**ATTENTION, "radius": 2}, X, 4, 1),
    FeedForward: arguments({"d_model": 12, "d_ff": 20, "activation": "gelu"}, X, 4, 0),
    PrefixSelfAttention: arguments(ATTENTION, X, 4, 1),
    Residual: arguments({"d_model": 12, "dropout_rate": 0.1}, X_AND_OUTPUT, 2, 1),
    EncoderLayer: arguments(BLOCK, X, ENCODER_WEIGHTS, 3),
    PrefixLayer: arguments(BLOCK, X, ENCODER_WEIGHTS, 3),
    DecoderLayer: arguments(BLOCK, X_AND_CONTEXT, DECODER_WEIGHTS, 5),
    Encoder: arguments(stacked(EncoderLayer), X, 2 * ENCODER_WEIGHTS + 2, 6),
    PrefixStack: arguments(stacked(PrefixLayer), X, 2 * ENCODER_WEIGHTS + 2, 6),
    Decoder: arguments(stacked(DecoderLayer), X_AND_CONTEXT, 2 * DECODER_WEIGHTS + 2, 10),
    PositionalEmbedding: arguments(
        {"vocab_size": 9, "d_model": 12, "dropout_rate": 0.1, "mask_zero": True},
        (2, 5), 1, 1,
        input_dtype="int32", expected_output_shape=X, expected_mask_shape=(2, 5),
    ),
    OutputProjection: arguments(
        {"vocab_size": 9}, X, 2, 0,
        expected_output_shape=(2, 5, 9), expected_output_dtype="float32",
    ),
    AdditiveAttention: arguments(
        {"units": 7}, WIDER_CONTEXT, 4, 0, expected_output_shape=(2, 5, 14)
    ),
    DotAttention: arguments({}, QUERY_AND_CONTEXT, 0, 0),
    GeneralAttention: arguments({}, WIDER_CONTEXT, 1, 0, expected_output_shape=(2, 5, 14)),
    PredictedWindow: arguments(
        {"window": 2, "units": 7}, WIDER_CONTEXT, 2, 0, expected_output_shape=(2, 5, 4)
    ),
    Maxout: arguments({"units": 9, "pool_size": 3}, X, 2, 0, expected_output_shape=(2, 5, 9)),
}  # fmt: skip
EVERY_LAYER = pytest.mark.parametrize("layer_class", CASES, ids=lambda case: case.__name__)


def is_layer(value):
    return inspect.isclass(value) and issubclass(value, keras.Layer)


def test_every_public_layer_is_tested():
    public = [getattr(layers_module, name) for name in layers_module.__all__]
    assert set(filter(is_layer, public)) == set(CASES)
    assert layers_module.__all__ == sorted(layers_module.__all__)


# Keras trains on a generator.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@EVERY_LAYER
def test_the_layer_passes_keras_test(layer_class):
    TestCase().run_layer_test(layer_class, **CASES[layer_class])


def make(layer_class):
    """A layer of its case, with layers of its own where it is a stack."""
    kwargs = CASES[layer_class]["init_kwargs"]
    return layer_class(**(stacked(layer_class.layer_class) if "layers" in kwargs else kwargs))


def named_shapes(layer_class):
    shapes = CASES[layer_class]["input_shape"]
    return shapes if isinstance(shapes, dict) else {"x_shape": shapes}


@pytest.mark.parametrize(
    "layer_class", [case for case in CASES if issubclass(case, HiddenStateLayer)]
)
def test_build_and_call_name_a_shape_that_does_not_fit(layer_class):
    layer, shapes = make(layer_class), named_shapes(layer_class)
    inputs = {name.removesuffix("_shape"): np.ones(shape) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        argument = name.removesuffix("_shape")
        wrong = (*shape[:-1], 13)
        message = f"{layer_class.__name__} needs {argument} of shape .*d_model=12.*2, ., 13"
        with pytest.raises(ValueError, match=message) as error:
            make(layer_class).build(**{**shapes, name: wrong})
        assert "\n" not in str(error.value)
        layer(**inputs)
        # A position-wise layer takes any rank.
        ranks = [] if layer_class in (FeedForward, Residual) else [shape[1:], (2, *shape)]
        for unfit in [wrong, *ranks]:
            with pytest.raises(ValueError, match=f"needs {argument} of shape .*d_model=12"):
                layer(**{**inputs, argument: np.ones(unfit)})


@EVERY_LAYER
def test_the_constructor_creates_no_weights(layer_class):
    assert make(layer_class).weights == []


@EVERY_LAYER
def test_outputs_of_an_empty_batch_are_empty(layer_class):
    case = CASES[layer_class]
    shapes = named_shapes(layer_class).values()
    inputs = [np.zeros((0, *shape[1:]), case.get("input_dtype")) for shape in shapes]
    output = make(layer_class)(*inputs)
    assert tuple(output.shape) == (0, *case["expected_output_shape"][1:])
