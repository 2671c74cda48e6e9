"""What Keras users hand to loss, metrics, model and translator by mistake is a one-line error."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from lengths import make_batches

import tf_transformer as tt
from tf_transformer.training.metrics import Perplexity, TokenAccuracy, TokenLoss

CONFIG = tt.TransformerConfig(16, 16, num_layers=1, d_model=8, num_heads=2, d_ff=8)
LABELS, LOGITS = np.ones((2, 3), "int32"), np.zeros((2, 3, 7), "float32")
EVERY_MEASURE = pytest.mark.parametrize(
    "measure", [tt.SmoothedCrossEntropy, TokenLoss, TokenAccuracy, Perplexity]
)


# Shapes


@EVERY_MEASURE
@pytest.mark.parametrize("shape", [(2, 3, 1), (3,), (2, 2), (1, 3), (3, 2), ()])
def test_sample_weights_of_another_shape_are_an_error(measure, shape):
    message = re.escape(f"here with B=2 and T=3; received shape {shape}")
    with pytest.raises(ValueError, match=message) as raised:
        measure()(LABELS, LOGITS, np.ones(shape))
    assert "\n" not in str(raised.value)


@EVERY_MEASURE
@pytest.mark.parametrize(
    ("true_shape", "pred_shape"),
    [((2, 3, 1), (2, 3, 7)), ((6,), (2, 3, 7)), ((2, 3), (2, 4, 7)), ((2, 3), (1, 3, 7)),
     ((2, 3), (6, 7)), ((2, 3), (2, 3))],
)  # fmt: skip
def test_labels_and_logits_that_do_not_fit_are_an_error(measure, true_shape, pred_shape):
    message = re.escape(f"y_true of shape {true_shape} and y_pred of shape {pred_shape}")
    with pytest.raises(ValueError, match=message):
        measure()(np.ones(true_shape, "int32"), np.zeros(pred_shape, "float32"))


@EVERY_MEASURE
def test_axes_of_unknown_size_are_accepted(measure):
    measured = measure()
    ids, floats = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None, 7])
    in_graph = tf.function(measured, input_signature=[ids, floats, tf.TensorSpec([None])])
    expected = measure()(LABELS, LOGITS, np.array([1.0, 0.5]))
    np.testing.assert_allclose(in_graph(LABELS, LOGITS, np.array([1.0, 0.5])), expected)


@EVERY_MEASURE
def test_a_batch_without_a_sentence_counts_nothing(measure):
    value = float(measure()(LABELS[:0], LOGITS[:0]))
    assert value == (1.0 if measure is Perplexity else 0.0)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_batch_without_a_sentence_goes_through_the_transformer(policy):
    model = tt.Transformer(CONFIG, dtype=policy)
    inputs = {name: np.ones((0, 4), "int32") for name in ("source_ids", "target_ids")}
    assert model(inputs).shape == (0, 4, 16)
    assert model({**inputs, "labels": np.ones((0, 4), "int32")}).shape == (0, 4, 3)
    with tf.GradientTape() as tape:
        loss = tt.SmoothedCrossEntropy()(np.ones((0, 4), "int32"), model(inputs, training=True))
    for gradient in tape.gradient(loss, [v.value for v in model.trainable_variables]):
        assert not np.asarray(tf.convert_to_tensor(gradient)).any()


# Padding ids


@EVERY_MEASURE
def test_compile_refuses_another_padding_id(measure):
    model = tt.Transformer(CONFIG)
    loss = measure if measure is tt.SmoothedCrossEntropy else tt.SmoothedCrossEntropy
    message = f"compile received a {measure.__name__} with pad_id=3, but the model has pad_id=0"
    with pytest.raises(ValueError, match=message):
        if measure is loss:
            model.compile("sgd", measure(pad_id=3))
        else:
            model.compile("sgd", loss(), metrics=[loss(), measure(pad_id=3)])
    model.compile("sgd", loss(), metrics=[TokenAccuracy()])


def test_data_with_another_padding_id_than_the_model_are_refused_before_training():
    model = tt.Transformer(tt.TransformerConfig(
        **{**CONFIG.to_dict(), "pad_id": 5, "source_vocab_size": 99, "target_vocab_size": 99}
    ))  # fmt: skip
    model.compile("sgd", tt.SmoothedCrossEntropy(pad_id=5), jit_compile=False)
    data = make_batches([(2, 3), (4, 1)], 20)
    for method, arguments in (
        (model.fit, {"x": data.dataset(num_epochs=1)}),
        (model.fit, {"x": None, "validation_data": data.dataset(num_epochs=1)}),
        (model.evaluate, {"x": data.dataset(num_epochs=1)}),
    ):
        with pytest.raises(ValueError, match="Dataset with pad_id=0, but the model has pad_id=5"):
            method(**arguments)
    assert int(model.optimizer.iterations) == 0


def test_a_compiled_model_is_loaded_compiled(tmp_path):
    model = tt.Transformer(CONFIG)
    model.compile(tt.Adam(0.5), tt.SmoothedCrossEntropy(0.2), metrics=[TokenAccuracy()])
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.compiled and loaded.optimizer.built and loaded.loss.label_smoothing == 0.2
