"""What Keras users hand to loss, metrics, model and translator by mistake is a one-line error."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

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


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "float16"])
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


def test_a_compiled_model_is_loaded_compiled(tmp_path):
    model = tt.Transformer(CONFIG)
    model.compile(tt.Adam(0.5), tt.SmoothedCrossEntropy(0.2), metrics=[TokenAccuracy()])
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.compiled and loaded.optimizer.built and loaded.loss.label_smoothing == 0.2


# What a translator is made of


class Tokenizer:
    """A tokenizer of letters without anything to save."""

    vocab_size, pad_id, bos_id, eos_id = 16, 0, 2, 3
    graph_resource = None

    def tokenize(self, texts):
        letters = tf.strings.unicode_decode(texts, "UTF-8")
        return tf.minimum(letters - ord("a") + 4, 15)

    def detokenize(self, ids):
        return tf.strings.unicode_encode(ids - 4 + ord("a"), "UTF-8")


def tokenizer_with(**attributes):
    return type("Tokenizer", (Tokenizer,), attributes)()


class GruModel(keras.Model):
    """A foreign model, whose weights come with its first call."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(16, 8)
        self.cell = keras.layers.GRUCell(8)
        self.head = keras.layers.Dense(16)

    def start_decoding(self, source_ids, num_steps=None, beam_size=None):
        state = tf.reduce_mean(self.embedding(source_ids), axis=1)
        return {"state": state if beam_size is None else tf.repeat(state, beam_size, axis=0)}

    def decode_step(self, token_ids, index, cache):
        output, [state] = self.cell(self.embedding(token_ids), [cache["state"]])
        return self.head(output), {"state": state}


def translator(model=None, source=None, target=None):
    return tt.Translator.from_model(
        tt.Transformer(CONFIG) if model is None else model, source or Tokenizer(),
        target or Tokenizer(), 8,
    )  # fmt: skip


def test_a_tokenizer_of_another_kind_translates():
    assert len(translator()(["abc", "b"])) == 2


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"pad_id": 1}, ValueError, "tokenizer has pad_id=1, but the model was made for pad_id=0"),
        ({"vocab_size": 15}, ValueError, "has vocab_size=15, but the model was made for .*=16"),
        ({"vocab_size": 17}, ValueError, "has vocab_size=17, but the model was made for .*=16"),
    ],
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_tokenizer_that_does_not_fit_is_refused_in_one_line(side, attributes, error, message):
    with pytest.raises(error, match=message) as raised:
        translator(**{side: tokenizer_with(**attributes)})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (tt.Transformer, TypeError, "must be an instance; received the class Transformer"),
        (keras.layers.Dense(3), TypeError, "needs the method start_decoding; Dense has none"),
        (GruModel(), ValueError, "the model gru_model.* is not built.* call it on a batch first"),
    ],
)
def test_a_model_that_cannot_be_saved_is_refused_in_one_line(model, error, message):
    with pytest.raises(error, match=message) as raised:
        translator(model)
    assert "\n" not in str(raised.value)


def test_a_foreign_model_that_has_its_weights_is_exported_with_them(tmp_path):
    model = GruModel()
    model.decode_step(tf.constant([2]), 0, model.start_decoding(tf.constant([[4, 3]])))
    in_memory = translator(model)
    tt.export_saved_model(in_memory, tmp_path)
    texts = ["abc", "b", "cde"]
    assert tt.Translator.load(tmp_path)(texts) == in_memory(texts)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_model_stored_as_float16_has_nearly_the_same_logits(norm_first):
    config = tt.TransformerConfig(**{**CONFIG.to_dict(), "norm_first": norm_first})
    exact, model = tt.Transformer(config), tt.Transformer(config, dtype="float16")
    model.set_weights(exact.get_weights())
    source = np.array([[4, 9, 3], [3, 0, 0], [0, 0, 0]], "int32")
    logits = model((source, source))
    assert {weight.dtype for weight in model.encoder.weights} == {"float16"}
    assert logits.dtype == "float32" and np.isfinite(logits).all()
    np.testing.assert_allclose(logits[:2], exact((source, source))[:2], atol=0.02)
    assert len(translator(model)(["abc", "", "b"])) == 3
