"""The features of Keras, each with each kind of model; `docs/keras.md` names them."""

import math
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt

pytestmark = pytest.mark.slow

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "keras.md"
VOCAB_SIZE = 16
LABELS = np.array([[4, 5, 6, 3], [7, 3, 0, 0], [9, 8, 3, 0]])  # copies of the source
INPUTS = (LABELS, np.array([[2, 4, 5, 6], [2, 7, 0, 0], [2, 9, 8, 0]]))
DATA = tf.data.Dataset.from_tensors((INPUTS, LABELS)).repeat(2)


def transformer():
    config = tt.TransformerConfig(
        VOCAB_SIZE, VOCAB_SIZE, num_layers=1, d_model=8, num_heads=2, d_ff=16, dropout_rate=0.0
    )
    return tt.Transformer(config)


@keras.saving.register_keras_serializable(package="tests")
class TutorialTransformer(keras.Model):
    """The model of TensorFlow's tutorial, of our layers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.source_embedding, self.target_embedding = (
            tt.PositionalEmbedding(VOCAB_SIZE, 8) for _ in range(2)
        )
        self.encoder = tt.Encoder([tt.EncoderLayer(8, 2, 16, 0.0)])
        self.decoder = tt.Decoder([tt.DecoderLayer(8, 2, 16, 0.0)])
        self.final_layer = keras.layers.Dense(VOCAB_SIZE)

    def call(self, inputs, training=None):
        source_ids, target_ids = inputs
        mask = tt.padding_mask(source_ids, pad_id=0)
        source, target = self.source_embedding(source_ids), self.target_embedding(target_ids)
        context = self.encoder(source, attention_mask=mask, training=training)
        hidden = self.decoder(target, context, cross_attention_mask=mask, training=training)
        return self.final_layer(hidden)


def subclassed():
    model = TutorialTransformer()
    model(INPUTS)
    return model


def functional():
    source_ids, target_ids = (keras.Input([None], dtype="int32") for _ in range(2))
    mask = tt.padding_mask(source_ids, pad_id=0)
    embed = tt.PositionalEmbedding(VOCAB_SIZE, 8)
    context = tt.EncoderLayer(8, 2, 16, 0.0)(embed(source_ids), attention_mask=mask)
    hidden = tt.DecoderLayer(8, 2, 16, 0.0)(embed(target_ids), context, cross_attention_mask=mask)
    logits = tt.OutputProjection(VOCAB_SIZE)(hidden)
    return keras.Model((source_ids, target_ids), logits)


KINDS = {"`Transformer`": transformer, "subclassed": subclassed, "functional": functional}


def fit(model, optimizer=None, callbacks=(), eager=True, epochs=1, **options):
    """Two steps an epoch, in which the weights move; eager where a graph is not the question."""
    before = model.get_weights()
    model.compile(
        optimizer or keras.optimizers.SGD(0.1),
        tt.SmoothedCrossEntropy(),
        metrics=[tt.TokenAccuracy(), tt.Perplexity()],
        **{"run_eagerly": eager, "jit_compile": False, **options},
    )
    history = model.fit(
        DATA, validation_data=DATA.take(1), epochs=epochs, shuffle=False, verbose=0,
        callbacks=list(callbacks),
    ).history  # fmt: skip
    assert all(math.isfinite(value) for values in history.values() for value in values)
    pairs = zip(before, model.get_weights(), strict=True)
    assert any((one != other).any() for one, other in pairs)
    return history


def check_optimizer(make_optimizer):
    return lambda make, folder: fit(make(), make_optimizer())


def check_policy(policy):
    def check(make, folder):
        default = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            model = make()
            fit(model, keras.optimizers.Adam(0.01))
        finally:
            keras.config.set_dtype_policy(default)
        assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
        dtypes = {layer.compute_dtype for layer in model._flatten_layers(include_self=False)}
        assert policy.removeprefix("mixed_") in dtypes
        if policy == "mixed_float16":
            assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)

    return check


def check_early_stopping(make, folder):
    # Nothing is better by so much than the first epoch.
    for monitor in ("val_accuracy", "val_perplexity"):
        stop = keras.callbacks.EarlyStopping(monitor, patience=1, min_delta=1e9)
        history = fit(make(), callbacks=[stop], epochs=5)
        assert len(history["loss"]) == 2
        assert stop.monitor_op(2, 1) == (monitor == "val_accuracy")


def check_save(make, folder):
    model = make()
    fit(model)
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    np.testing.assert_allclose(loaded(INPUTS), model(INPUTS), atol=1e-5)
    assert loaded.compiled and loaded.optimizer.built
    assert loaded.loss.get_config() == model.loss.get_config()


def check_export(make, folder):
    model = make()
    model.export(folder, verbose=False)
    served = tf.saved_model.load(folder)
    inputs = INPUTS
    if isinstance(model, tt.Transformer):
        inputs = dict(zip(("source_ids", "target_ids"), INPUTS, strict=True))
    np.testing.assert_allclose(served.serve(inputs), model(INPUTS), atol=1e-5)


def check_quantize(make, folder):
    model = make()
    before = np.asarray(model(INPUTS))
    model.quantize("int8")
    assert any(variable.dtype == "int8" for variable in model.variables)
    after = np.asarray(model(INPUTS))
    assert 0 < np.abs(after - before).max() < 0.2 * np.abs(before).max()
    model.save_weights(folder / "int8.weights.h5")
    loaded = make()
    loaded.quantize("int8")
    loaded.load_weights(folder / "int8.weights.h5")
    np.testing.assert_array_equal(loaded(INPUTS), after)
    if make is not subclassed:  # Keras makes the layers of such a model without a word of int8
        model.save(folder / "int8.keras")
        np.testing.assert_array_equal(keras.models.load_model(folder / "int8.keras")(INPUTS), after)


# Each feature is a row of the table, and what checks it, given a kind of model and a folder.
CHECKS = {
    "our `Adam`, `weight_decay` and `global_clipnorm`": check_optimizer(
        lambda: tt.Adam(0.1, weight_decay=0.1, global_clipnorm=1.0)
    ),
    "`NoamSchedule`": check_optimizer(lambda: tt.Adam(tt.NoamSchedule(8, 10))),
    "`TrapezoidSchedule`": check_optimizer(lambda: tt.Adam(tt.TrapezoidSchedule(0.1, 100, 10))),
    "`jit_compile=True` (XLA)": lambda make, folder: fit(make(), eager=False, jit_compile=True),
    "`mixed_bfloat16`": check_policy("mixed_bfloat16"),
    "`mixed_float16`": check_policy("mixed_float16"),
    "`EarlyStopping`": check_early_stopping,
    "`save` to `.keras`, `load_model`": check_save,
    "`export`": check_export,
    '`quantize("int8")`': check_quantize,
}


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("feature", CHECKS)
def test_the_feature_works(feature, kind, tmp_path):
    keras.utils.set_random_seed(0)
    CHECKS[feature](KINDS[kind], tmp_path)


def test_the_page_names_these_features():
    page = PAGE.read_text(encoding="utf-8")
    assert [feature for feature in CHECKS if feature not in page] == []
