"""Keras' own test of a layer, for every public layer."""

import inspect

import keras
import numpy as np
import pytest
from keras.src.testing import TestCase

import tf_transformer as tt

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
    tt.MultiHeadAttention: arguments(ATTENTION, QUERY_AND_CONTEXT, 6, 1),
    tt.CrossAttention: arguments(ATTENTION, QUERY_AND_CONTEXT, 6, 1),
    tt.GlobalSelfAttention: arguments(ATTENTION, X, 4, 1),
    tt.CausalSelfAttention: arguments(ATTENTION, X, 4, 1),
    tt.RestrictedSelfAttention: arguments({**ATTENTION, "radius": 2}, X, 4, 1),
    tt.FeedForward: arguments(
        {"d_model": 12, "d_ff": 20, "activation": keras.activations.gelu}, X, 4, 0
    ),
    tt.PrefixSelfAttention: arguments(ATTENTION, X, 4, 1),
    tt.Residual: arguments({"d_model": 12, "dropout_rate": 0.1}, X_AND_OUTPUT, 2, 1),
    tt.EncoderLayer: arguments(BLOCK, X, ENCODER_WEIGHTS, 3),
    tt.PrefixLayer: arguments(BLOCK, X, ENCODER_WEIGHTS, 3),
    tt.DecoderLayer: arguments(BLOCK, X_AND_CONTEXT, DECODER_WEIGHTS, 5),
    tt.Encoder: arguments(stacked(tt.EncoderLayer), X, 2 * ENCODER_WEIGHTS + 2, 6),
    tt.PrefixStack: arguments(stacked(tt.PrefixLayer), X, 2 * ENCODER_WEIGHTS + 2, 6),
    tt.Decoder: arguments(stacked(tt.DecoderLayer), X_AND_CONTEXT, 2 * DECODER_WEIGHTS + 2, 10),
    tt.PositionalEmbedding: arguments(
        {"vocab_size": 9, "d_model": 12, "dropout_rate": 0.1, "mask_zero": True},
        (2, 5), 1, 1,
        input_dtype="int32", expected_output_shape=X, expected_mask_shape=(2, 5),
    ),
    tt.OutputProjection: arguments(
        {"vocab_size": 9}, X, 2, 0,
        expected_output_shape=(2, 5, 9), expected_output_dtype="float32",
    ),
    tt.OutputTransform: arguments({"d_model": 12, "activation": "gelu"}, X, 4, 0),
    tt.AdditiveAttention: arguments(
        {"units": 7}, WIDER_CONTEXT, 4, 0, expected_output_shape=(2, 5, 14)
    ),
    tt.DotAttention: arguments({}, QUERY_AND_CONTEXT, 0, 0),
    tt.GeneralAttention: arguments({}, WIDER_CONTEXT, 1, 0, expected_output_shape=(2, 5, 14)),
    tt.PredictedWindow: arguments(
        {"window": 2, "units": 7}, WIDER_CONTEXT, 2, 0, expected_output_shape=(2, 5, 4)
    ),
    tt.Maxout: arguments({"units": 9, "pool_size": 3}, X, 2, 0, expected_output_shape=(2, 5, 9)),
}  # fmt: skip


def test_every_public_layer_is_tested():
    classes = {value for name in tt.__all__ if inspect.isclass(value := getattr(tt, name))}
    layers = {kind for kind in classes if issubclass(kind, keras.Layer)}
    assert {kind for kind in layers if not issubclass(kind, keras.Model)} == set(CASES)


# Keras trains on a generator.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize("layer_class", CASES, ids=lambda case: case.__name__)
def test_the_layer_passes_keras_test(layer_class):
    TestCase().run_layer_test(layer_class, **CASES[layer_class])


class ScaledAttention(tt.GlobalSelfAttention):
    """A user's layer, which passes on what it does not know."""

    def __init__(self, scale, dtype=None, **kwargs):
        super().__init__(dtype=dtype, **kwargs)
        self.factor = scale

    def get_config(self):
        return {**super().get_config(), "scale": self.factor}


def test_a_subclass_adds_an_argument_to_the_configuration():
    layer = ScaledAttention(2.0, num_heads=3, d_model=12, dropout_rate=0.1, dtype="mixed_bfloat16")
    twin = ScaledAttention.from_config(layer.get_config())
    assert twin.get_config() == layer.get_config()
    assert (twin.factor, twin.num_heads, twin.compute_dtype) == (2.0, 3, "bfloat16")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tt.MultiHeadAttention(5, 12), "d_model must be a multiple of num_heads"),
        (lambda: tt.MultiHeadAttention(0, 12), "d_model must be a multiple of num_heads"),
        (lambda: tt.MultiHeadAttention(2, 0), "d_model must be a multiple of num_heads"),
        (lambda: tt.local_mask(3, -1), "radius must not be negative"),
        (lambda: tt.sinusoidal_positions(5, 7), "d_model must be even.*received 7"),
        (
            lambda: tt.sinusoidal_positions(5, 8, sinusoids="sinus"),
            "one of.*received 8 and 'sinus'",
        ),
        (lambda: tt.Encoder([]), "needs one or more layers"),
        (
            lambda: tt.Encoder([tt.EncoderLayer(8, 2, 8, norm_first=n) for n in (True, False)]),
            "with the same d_model, norm_first",
        ),
        (
            lambda: tt.OutputProjection(50, keras.layers.Embedding(90, 8))(np.ones((1, 2, 8))),
            r"must have sizes \(50, 8\); it has \(90, 8\)",
        ),
        (
            lambda: tt.PositionalEmbedding(9, 8, 0.0, keras.layers.Embedding(9, 1))(
                np.ones((1, 2))
            ),
            r"must have sizes \(9, 8\)",
        ),
        (lambda: tt.Adam(global_clipnorm=-1.0), "global_clipnorm must be above 0"),
        (lambda: tt.TokenLoss(label_smoothing=np.nan), r"label_smoothing must be in \[0, 1\)"),
        (lambda: tt.RestrictedSelfAttention(3, 12, 0), "radius must be at least 1"),
        (lambda: tt.PredictedWindow(0, 8), "window must be at least 1"),
    ],
)
def test_an_impossible_size_is_an_error(make, words):
    with pytest.raises(ValueError, match=words):
        make()
