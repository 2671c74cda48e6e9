"""What Keras asks of our models and losses, and what a translator can be made of."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import CONFIGS, ONE_EACH, batch, every

import tf_transformer as tt
from tf_transformer.models.architectures import build_model
from tf_transformer.training.metrics import Perplexity, TokenAccuracy, TokenLoss

CONFIG = tt.TransformerConfig(16, 16, num_layers=1, d_model=8, num_heads=2, d_ff=8)
LABELS, LOGITS = np.ones((2, 3), "int32"), np.zeros((2, 3, 7), "float32")


@pytest.mark.parametrize("measure", [tt.SmoothedCrossEntropy, TokenLoss, TokenAccuracy, Perplexity])
def test_a_batch_without_a_sentence_counts_nothing(measure):
    value = float(measure()(LABELS[:0], LOGITS[:0]))
    assert value == (1.0 if measure is Perplexity else 0.0)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "float16"])
def test_a_batch_without_a_sentence_goes_through_the_transformer(policy):
    model = tt.Transformer(CONFIG, dtype=policy)
    inputs = {name: np.ones((0, 4), "int32") for name in ("source_ids", "target_ids")}
    assert model(inputs).shape == (0, 4, 16)
    with tf.GradientTape() as tape:
        loss = tt.SmoothedCrossEntropy()(np.ones((0, 4), "int32"), model(inputs, training=True))
    for gradient in tape.gradient(loss, [v.value for v in model.trainable_variables]):
        assert not np.asarray(tf.convert_to_tensor(gradient)).any()


@every(ONE_EACH)
def test_no_layer_hides_a_method_of_keras(name):
    model = build_model(CONFIGS[name])
    for layer in (model, *model._flatten_layers()):
        parts = [part for part, value in vars(layer).items() if isinstance(value, keras.Layer)]
        assert not {*parts} & {*dir(keras.Model)}


def test_a_model_takes_its_own_configuration_and_no_other():
    # A `BahdanauConfig` is a `ChoConfig`, with attention.
    with pytest.raises(TypeError, match="Cho needs a ChoConfig; received a BahdanauConfig"):
        tt.Cho(tt.BahdanauConfig(16, 16, d_model=8))
    with pytest.raises(ValueError, match="attention_dropout_rate must be given"):
        tt.Transformer(dataclasses.replace(CONFIG, attention_dropout_rate=None))


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize", "ignore:Invalid quanti")
@pytest.mark.parametrize(
    "mode", ["int8", *(pytest.param(n, marks=pytest.mark.slow) for n in ("int4", "float8"))]
)
@every(ONE_EACH)
def test_a_quantized_model_is_loaded_as_it_was_saved(name, mode, tmp_path):
    model, inputs = build_model(CONFIGS[name]), batch(CONFIGS[name])
    model.quantize(mode, filters=lambda layer: "layer_1" not in (layer.path or ""))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    np.testing.assert_array_equal(twin(inputs), model(inputs))


def test_compile_refuses_another_padding_id():
    model, loss = tt.Transformer(CONFIG), tt.SmoothedCrossEntropy
    for options in ({"loss": loss(pad_id=3)}, {"loss": loss(), "metrics": [TokenLoss(pad_id=3)]}):
        with pytest.raises(ValueError, match="pad_id=3, but the model has pad_id=0"):
            model.compile("sgd", **options)
    model.compile("sgd", loss(), metrics=[TokenAccuracy()])


class Tokenizer:
    """A tokenizer of letters without anything to save."""

    vocab_size, pad_id, bos_id, eos_id = 16, 0, 2, 3
    graph_resource = None

    def tokenize(self, texts):
        letters = tf.strings.unicode_decode(texts, "UTF-8")
        return tf.minimum(letters - ord("a") + 4, 15)

    def detokenize(self, ids):
        return tf.strings.unicode_encode(ids - 4 + ord("a"), "UTF-8")


class GruModel(keras.Model):
    """A foreign model, whose weights come with its first call."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(16, 8)
        self.cell = keras.layers.GRUCell(8)
        self.head = keras.layers.Dense(16)

    def start_decoding(self, source_ids):
        return {"target": tf.reduce_mean(self.embedding(source_ids), axis=1)}

    def decode_step(self, token_ids, index, cache):
        output, [state] = self.cell(self.embedding(token_ids), [cache["target"]])
        return self.head(output), {"target": state}


@pytest.mark.slow
def test_a_foreign_model_and_tokenizer_are_exported(tmp_path):
    model = GruModel()
    model.decode_step(tf.constant([2]), 0, model.start_decoding(tf.constant([[4, 3]])))
    in_memory = tt.Translator.from_model(model, Tokenizer(), Tokenizer(), tt.Search(max_length=8))
    tt.export_saved_model(in_memory, tmp_path)
    texts = ["abc", "b", "cde"]
    assert tt.Translator.load(tmp_path)(texts) == in_memory(texts)
