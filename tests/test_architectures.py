"""The model contract, tested for every architecture and its variants."""

import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import (
    ALIGNING,
    CONFIGS,
    FEW,
    GENERATING,
    ONE_EACH,
    architecture_of,
    batch,
    decoded,
    every,
    has_attention_scores,
    small_model,
)

from tf_transformer.layers.output import OutputProjection
from tf_transformer.models.architectures import ARCHITECTURES, architecture_name


@pytest.fixture(scope="module")
def model_of(randomise):
    return functools.cache(lambda name: randomise(small_model(name)))


def exported(model, folder):
    model.export(folder / "exported", verbose=False)
    loaded = tf.saved_model.load(folder / "exported")
    return lambda inputs: loaded.serve(inputs)  # which keeps the variables alive


WAYS = {
    "eager": lambda model, folder: model,
    "graph": lambda model, folder: tf.function(model, reduce_retracing=True),
    "predict": lambda model, folder: functools.partial(model.predict, verbose=0),
    "exported": exported,
}


@every([*ARCHITECTURES, *(name for name in FEW if name not in ARCHITECTURES)], WAYS)
def test_padding_and_neighbours_never_change_logits(name, way, model_of, tmp_path):
    model = model_of(name)
    call = WAYS[way](model, tmp_path)
    sentence = st.lists(st.integers(4, 10), min_size=1, max_size=4)

    @settings(max_examples=4, deadline=None)
    @given(st.lists(st.tuples(sentence, sentence), min_size=2, max_size=2),
           st.integers(0, 3), st.integers(0, 3))  # fmt: skip
    def check(pairs, source_padding, target_padding):
        def rows(side, padding):
            width = max(len(pair[side]) for pair in pairs) + padding
            ids = [pair[side] + [model.config.pad_id] * (width - len(pair[side])) for pair in pairs]
            return np.array(ids, "int32")

        inputs = {"source_ids": rows(0, source_padding), "target_ids": rows(1, target_padding)}
        together = np.asarray(call(inputs))
        for row, (source, target) in enumerate(pairs):
            alone = model({"source_ids": np.array([source]), "target_ids": np.array([target])})
            np.testing.assert_allclose(together[row, : len(target)], alone[0], atol=1e-5)

    check()


@every(GENERATING, ["eager", "graph"])
def test_cached_logits_equal_teacher_forcing(name, way, model_of):
    model, inputs = model_of(name), batch(CONFIGS[name])
    logits = decoded(model, **inputs, in_graph=way == "graph")
    assert logits.dtype == "float32"
    np.testing.assert_allclose(logits, model(inputs), atol=1e-5)


# Operations of a greedy step of three layers.
STEP_OPERATIONS = 249


def test_a_decoding_step_has_few_operations():
    model = small_model("transformer")
    cache = model.start_decoding(batch(model.config)["source_ids"])
    step = tf.function(model.decode_step).get_concrete_function(
        tf.constant([2, 2]), tf.constant(0), cache
    )
    kinds = [op.type for op in step.graph.get_operations()]
    free = ("Const", "Placeholder", "Identity", "NoOp", "ReadVariableOp")
    assert len([kind for kind in kinds if kind not in free]) <= STEP_OPERATIONS


@every([n for n in GENERATING if n in FEW])
def test_a_model_stored_as_bfloat16_decodes_to_nearly_the_same_logits(name):
    exact, model = small_model(name), small_model(name, dtype="bfloat16")
    model.set_weights(exact.get_weights())
    layers = [layer for layer in model.layers if layer is not model.output_projection]
    assert {w.dtype for layer in layers for w in layer.trainable_weights} == {"bfloat16"}
    inputs = batch(exact.config)
    logits = decoded(model, **inputs)
    assert logits.dtype == "float32"
    # Logits have deviation 1 at the start; a position wrong by one would be far off.
    np.testing.assert_allclose(logits, exact(inputs), atol=0.2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_training_projects_in_half_precision(dtype):
    projection = OutputProjection(vocab_size=30, dtype="float32")
    projection.build((None, None, 64))
    hidden = tf.cast(np.random.default_rng(0).normal(size=(2, 3, 64)), dtype)
    exact = tf.cast(hidden, "float32") @ projection.kernel.value
    rounded = tf.cast(hidden @ tf.cast(projection.kernel.value, dtype), "float32")
    assert projection(hidden).dtype == projection(hidden, training=True).dtype == "float32"
    np.testing.assert_allclose(projection(hidden), exact, atol=1e-6)
    np.testing.assert_allclose(projection(hidden, training=True), rounded, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@every([*ARCHITECTURES, *(name for name in FEW if name not in ARCHITECTURES)])
def test_mixed_precision_is_finite_with_float32_logits(policy, name):
    model, exact = small_model(name, dtype=policy), small_model(name)
    exact.set_weights(model.get_weights())
    inputs = batch(model.config)
    inputs["source_ids"][1] = model.config.pad_id  # a source with nothing to attend to
    with tf.GradientTape() as tape:
        logits = model(inputs)
        total = tf.reduce_mean(logits**2)
    assert logits.dtype == "float32"
    gradients = tape.gradient(total, model.trainable_variables)
    tensors = [logits, *(g for g in gradients if g is not None)]
    if name in GENERATING:
        cache = model.start_decoding(inputs["source_ids"])
        tensors.append(model.decode_step(inputs["target_ids"][:, 0], 0, cache)[0])
    if has_attention_scores(name):
        scores = model(inputs, return_attention_scores=True)[1]["cross"]
        assert {layer.dtype for layer in scores} == {tf.as_dtype(model.compute_dtype)}
        tensors += scores
    for tensor in tensors:
        assert np.isfinite(np.asarray(tf.convert_to_tensor(tensor), "float32")).all()
    # Logits have deviation 1 at the start.
    np.testing.assert_allclose(logits[0], exact(inputs)[0], atol=0.2)


@every([*ARCHITECTURES, "transformer, other choices"])
def test_config_round_trip(name, randomise):
    config = CONFIGS[name]
    model = type(small_model(name))(config.to_dict(), name="here", dtype="mixed_bfloat16")
    randomise(model)
    assert architecture_name(model.config) == architecture_of(name)
    twin = type(model).from_config(model.get_config())
    assert twin.config == config == type(config)(**config.to_dict())
    assert twin.name == "here" and twin.dtype_policy == model.dtype_policy
    twin.set_weights(model.get_weights())
    np.testing.assert_array_equal(twin(batch(config)), model(batch(config)))


@every(CONFIGS, fast=["causal_lm"])
def test_a_batch_may_be_empty(name, model_of):
    """As the batch of a server is that scores no texts."""
    sides, empty = batch(CONFIGS[name]), np.zeros((0, 0), "int32")
    spec = tf.TensorSpec([None, None], tf.int32)
    call = tf.function(model_of(name), input_signature=[dict.fromkeys(sides, spec)])
    assert call(dict.fromkeys(sides, empty)).shape[:2] == (0, 0)


@every(CONFIGS)
def test_gradients_reach_every_variable(name, model_of):
    model = model_of(name)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(batch(CONFIGS[name]), training=True) ** 2)
    for variable, gradient in zip(
        model.trainable_variables, tape.gradient(total, model.trainable_variables), strict=True
    ):
        gradient = np.asarray(tf.convert_to_tensor(gradient))
        assert np.isfinite(gradient).all(), variable.path
        assert np.abs(gradient).max() > 1e-6, variable.path


@pytest.mark.parametrize("row", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_an_architecture_translates_if_its_model_decodes(row):
    assert row.config.translates == hasattr(row.model(), "start_decoding")


@every(ARCHITECTURES)
def test_dropout_acts_in_training_only(name):
    keras.utils.set_random_seed(2)
    model = type(small_model(name))({**CONFIGS[name].to_dict(), "dropout_rate": 0.3})
    inputs = batch(CONFIGS[name])
    quiet = np.asarray(model(inputs))
    np.testing.assert_array_equal(model(inputs, training=False), quiet)
    noisy = [np.asarray(model(inputs, training=True)) for _ in range(2)]
    for one, other in [(noisy[0], quiet), (noisy[1], quiet), noisy]:
        assert np.abs(one - other).max() > 1e-2


@pytest.mark.parametrize(
    "names",
    [["transformer"], pytest.param(["luong", "prefix_lm", "masked_lm"], marks=pytest.mark.slow)],
    ids=str,
)
def test_a_fresh_process_loads_the_saved_models(names, model_of, tmp_path):
    script = "import keras, numpy, tf_transformer\n"
    for name in names:
        model_of(name).save(tmp_path / f"{name}.keras")
        np.savez(tmp_path / f"{name}.npz", **batch(CONFIGS[name]))
        script += (
            f"tf_transformer.{type(model_of(name)).__name__}\n"  # which registers the class
            f"model = keras.models.load_model('{name}.keras')\n"
            f"numpy.save('{name}.npy', model(dict(numpy.load('{name}.npz'))))\n"
        )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True)
    for name in names:
        logits = model_of(name)(batch(CONFIGS[name]))
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), logits, atol=1e-6)


@every(ONE_EACH)
def test_the_model_is_a_part_of_a_functional_model(name, model_of):
    model, arrays = model_of(name), batch(CONFIGS[name])
    inputs = {key: keras.Input([None], dtype="int32", name=key) for key in arrays}
    whole = keras.Model(inputs, model(inputs))
    assert whole.output_shape == (None, None, 13)
    np.testing.assert_allclose(whole(arrays), model(arrays), atol=1e-6)


@every(ALIGNING, fast=["luong"])
def test_attention_to_the_source_is_a_distribution_over_its_tokens(name, model_of):
    inputs = batch(CONFIGS[name])
    _, scores = model_of(name)(inputs, return_attention_scores=True)
    for weights in scores["cross"]:
        assert weights.shape[0] == 2 and weights.shape[2:] == (6, 5)
        sums = np.sum(weights, axis=-1)
        if getattr(model_of(name).config, "attention_window", None) is None:
            np.testing.assert_allclose(sums, 1.0, atol=1e-5)
        assert (0 < sums).all() and (sums < 1 + 1e-5).all()
        assert np.max(weights[1, :, :, 2:]) < 1e-8, "padding"
