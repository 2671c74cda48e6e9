"""Tests of the whole Transformer: its sizes, its equations, and the model contract."""

import dataclasses
import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_transformer.layers.token_statistics import token_statistics
from tf_transformer.models.configs import TransformerConfig
from tf_transformer.models.transformer import Transformer

# Three layers a side, because a mask may get lost after the first.
TINY = TransformerConfig(13, 13, num_layers=3, d_model=12, num_heads=3, d_ff=20)
VARIANTS = {
    "norm-first, tied": TINY,
    "post-norm, tied": dataclasses.replace(TINY, norm_first=False),
    "norm-first, untied": dataclasses.replace(TINY, tie_embeddings=False, target_vocab_size=11),
    "post-norm, untied, pad 3": dataclasses.replace(
        TINY, norm_first=False, tie_embeddings=False, target_vocab_size=11, pad_id=3
    ),
}
TWO_VARIANTS = pytest.mark.parametrize("name", ["norm-first, tied", "post-norm, untied, pad 3"])
EVERY_VARIANT = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
SOURCE = np.array([[5, 6, 7, 8, 9], [4, 9, 0, 0, 0]], "int32")
TARGET = np.array([[2, 7, 1, 10, 4, 6], [2, 8, 5, 0, 0, 0]], "int32")


def batch(config, source=SOURCE, target=TARGET):
    """The inputs, padded with the configuration's own id."""
    return {
        "source_ids": np.where(source == 0, config.pad_id, source),
        "target_ids": np.where(target == 0, config.pad_id, target),
    }


@pytest.fixture(scope="module")
def model_of(randomise):
    return functools.cache(lambda config: randomise(Transformer(config)))


@pytest.mark.parametrize(
    ("changes", "vocabulary", "count"),
    [
        # Encoder layer 3,152,384, decoder layer 4,204,032; norms of 1,024; the output 513 V.
        ({"num_layers": 2, "tie_embeddings": False}, 10, 14_730_250),
        ({"tie_embeddings": False}, 37_000, 101_009_544),
        ({}, 37_000, 63_084_544),
        ({"norm_first": False}, 37_000, 63_082_496),
    ],
)
def test_number_of_parameters(changes, vocabulary, count):
    assert Transformer(TransformerConfig(vocabulary, vocabulary, **changes)).count_params() == count


@EVERY_VARIANT
def test_logits_and_scores_equal_the_papers_equations(config, model_of, numpy_logits):
    model, inputs = model_of(config), batch(config)
    logits, scores = model(inputs, return_attention_scores=True)
    expected, expected_scores = numpy_logits(model, inputs)
    assert logits.shape == (2, 6, config.target_vocab_size)
    np.testing.assert_allclose(logits, expected, atol=2e-4)
    np.testing.assert_allclose(model(inputs), logits, atol=1e-6)
    assert scores.keys() == expected_scores.keys()
    for kind, shape in {"encoder": (5, 5), "decoder": (6, 6), "cross": (6, 5)}.items():
        assert [tuple(layer.shape) for layer in scores[kind]] == [(2, 3, *shape)] * 3
        for layer, reference in zip(scores[kind], expected_scores[kind], strict=True):
            np.testing.assert_allclose(layer, reference, atol=1e-4)


def reloaded(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def very_first_call(model, inputs):
    fresh = Transformer(model.config)
    fresh.set_weights(model.get_weights())
    return fresh(inputs)


WAYS = {
    "eager": lambda model, folder: model,
    "graph": lambda model, folder: tf.function(model, reduce_retracing=True),
    "predict": lambda model, folder: functools.partial(model.predict, verbose=0),
    "reloaded": reloaded,
    "very first call": lambda model, folder: functools.partial(very_first_call, model),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@TWO_VARIANTS
def test_padding_and_neighbours_never_change_logits(way, name, model_of, tmp_path):
    model = model_of(VARIANTS[name])
    call = way(model, tmp_path)
    token = st.integers(4, 10)
    sentence = st.lists(token, min_size=1, max_size=4)

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


@EVERY_VARIANT
@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_later_target_tokens_change_later_logits_only(config, cut, model_of):
    model, inputs = model_of(config), batch(config)
    before = np.asarray(model(inputs))
    changed = inputs["target_ids"].copy()
    changed[0, cut:] = (changed[0, cut:] + 3) % 6 + 4
    after = np.asarray(model({**inputs, "target_ids": changed}))
    np.testing.assert_allclose(after[:, :cut], before[:, :cut], atol=1e-5)
    np.testing.assert_allclose(after[1], before[1], atol=1e-5)
    assert (np.abs(after - before)[0, cut:].max(axis=-1) > 1e-3).all()


@EVERY_VARIANT
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_cached_logits_equal_teacher_forcing(config, in_graph, model_of):
    model, inputs = model_of(config), batch(config)
    start, step = model.start_decoding, model.decode_step
    if in_graph:
        start, step = tf.function(start), tf.function(step, reduce_retracing=True)
    expected = np.asarray(model(inputs))
    cache = start(tf.constant(inputs["source_ids"]))
    for index in range(6):
        token_ids = tf.constant(inputs["target_ids"][:, index])
        logits, cache = step(token_ids, tf.constant(index), cache)
        assert logits.shape == (2, config.target_vocab_size) and logits.dtype == "float32"
        np.testing.assert_allclose(logits, expected[:, index], atol=1e-5)


@TWO_VARIANTS
def test_a_model_stored_as_bfloat16_decodes_to_nearly_the_same_logits(name):
    exact, model = Transformer(VARIANTS[name]), Transformer(VARIANTS[name], dtype="bfloat16")
    model.set_weights(exact.get_weights())
    assert {weight.dtype for weight in model.decoder.weights} == {"bfloat16"}
    inputs = batch(exact.config)
    expected = exact(inputs)
    for num_steps in (None, 6):
        cache = model.start_decoding(inputs["source_ids"], num_steps=num_steps)
        for index in range(6):
            token_ids = tf.constant(inputs["target_ids"][:, index])
            logits, cache = model.decode_step(token_ids, index, cache)
            assert logits.dtype == "float32"
            # Logits have deviation 1 at the start; a position wrong by one would be far off.
            np.testing.assert_allclose(logits, expected[:, index], atol=0.2)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@TWO_VARIANTS
def test_mixed_precision_is_finite_with_float32_logits(policy, name):
    model = Transformer(VARIANTS[name], dtype=policy)
    exact = Transformer(VARIANTS[name])
    exact.set_weights(model.get_weights())
    inputs = batch(model.config)
    inputs["source_ids"][1] = model.config.pad_id  # a source with nothing to attend to
    with tf.GradientTape() as tape:
        logits, scores = model(inputs, return_attention_scores=True)
        total = tf.reduce_mean(logits**2)
    assert logits.dtype == "float32"
    assert {layer.dtype for layer in scores["cross"]} == {tf.as_dtype(model.compute_dtype)}
    cached, _ = model.decode_step(
        inputs["target_ids"][:, 0], 0, model.start_decoding(inputs["source_ids"])
    )
    gradients = tape.gradient(total, model.trainable_variables)
    for tensor in [logits, cached, *gradients]:
        assert np.isfinite(np.asarray(tf.convert_to_tensor(tensor))).all()
    # Logits have deviation 1 at the start.
    np.testing.assert_allclose(logits[0], exact(inputs)[0], atol=0.2)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@TWO_VARIANTS
def test_with_labels_it_returns_the_scores_of_its_logits(name, policy, model_of):
    model = Transformer(VARIANTS[name], dtype=policy)
    model.set_weights(model_of(VARIANTS[name]).get_weights())
    inputs = batch(model.config)
    labels = np.roll(inputs["target_ids"], -1, axis=1)
    labels[:, -1] = model.config.pad_id

    def gradients(statistics_of):
        with tf.GradientTape() as tape:
            scores = statistics_of()
            total = tf.reduce_sum(scores[..., 0] + 0.3 * scores[..., 1])
        parts = tape.gradient(total, model.trainable_variables)
        return [scores, *map(tf.convert_to_tensor, parts)]

    found = gradients(lambda: model({**inputs, "labels": labels}))
    expected = gradients(lambda: token_statistics(labels, model(inputs), model.config.pad_id))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_inputs_may_be_a_dict_a_tuple_or_a_list(model_of):
    model, inputs = model_of(TINY), batch(TINY)
    pair = (inputs["source_ids"], inputs["target_ids"])
    expected = model(inputs)
    np.testing.assert_array_equal(model(pair), expected)
    np.testing.assert_array_equal(model(list(pair)), expected)


@pytest.mark.parametrize(
    ("inputs", "received"),
    [
        ({"source": SOURCE, "target_ids": TARGET}, r"the keys \['source', 'target_ids'\]"),
        ({"source_ids": SOURCE}, r"the keys \['source_ids'\]"),
        (
            {"source_ids": SOURCE, "target_ids": TARGET, "label": TARGET},
            r"the keys \['label', 'source_ids', 'target_ids'\]",
        ),
        ((SOURCE,), "1 inputs"),
        (SOURCE, "EagerTensor"),
    ],
)
def test_inputs_of_other_names_are_an_error(inputs, received, model_of):
    with pytest.raises(ValueError, match=f"source_ids, target_ids.*received {received}"):
        model_of(TINY)(inputs)


def test_a_dict_is_a_config(model_of):
    assert Transformer(TINY.to_dict()).config == TINY


@TWO_VARIANTS
def test_a_replaced_head_projects_in_calls_and_in_decoding(name):
    model, inputs = Transformer(VARIANTS[name]), batch(VARIANTS[name])
    model.output_projection = keras.layers.Dense(10)
    expected = model(inputs)
    assert expected.shape == (2, 6, 10)
    assert [w.path for w in model.output_projection.weights] and not [
        weight.path for weight in model.weights if weight.path.startswith("transformer/output")
    ]
    cache = model.start_decoding(inputs["source_ids"])
    for index in range(6):
        logits, cache = model.decode_step(inputs["target_ids"][:, index], index, cache)
        np.testing.assert_allclose(logits, expected[:, index], atol=1e-5)
    labels = inputs["target_ids"] % 10
    scores = model({**inputs, "labels": labels})
    np.testing.assert_allclose(
        scores, token_statistics(labels, expected, model.config.pad_id), atol=1e-5
    )


@TWO_VARIANTS
def test_keras_exports_the_model(name, model_of, tmp_path):
    model, inputs = model_of(VARIANTS[name]), batch(VARIANTS[name])
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.serve(inputs), model(inputs), atol=1e-5)


def test_the_summary_knows_all_output_shapes():
    lines = []
    Transformer(TINY).summary(print_fn=lines.append)
    text = "".join(lines)
    assert "?" not in text
    assert text.count("(None, None, 12)") == 4 and text.count("(None, None, 13)") == 1


INT8 = TransformerConfig(200, 200, num_layers=2, d_model=64, num_heads=4, d_ff=128)


@pytest.mark.slow
# Keras warns of each layer without an int8 form.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_int8_logits_are_near_the_float_ones(tied, policy, tmp_path):
    keras.utils.set_random_seed(1)
    model = Transformer(dataclasses.replace(INT8, tie_embeddings=tied), dtype=policy)
    rng = np.random.default_rng(0)
    inputs = {
        "source_ids": rng.integers(4, 200, (8, 9)),
        "target_ids": rng.integers(4, 200, (8, 10)),
    }
    exact = np.asarray(model(inputs))
    model.quantize("int8")
    logits = np.asarray(model(inputs))
    assert model.encoder.layers[0].feed_forward.expand.kernel.dtype == "int8"
    assert model.target_embedding.embedding.embeddings.dtype == "int8"
    norms = np.linalg.norm(exact, axis=-1) * np.linalg.norm(logits, axis=-1)
    assert ((exact * logits).sum(axis=-1) / norms).min() > 0.999
    assert (exact.argmax(axis=-1) == logits.argmax(axis=-1)).mean() > 0.9

    labels = np.roll(inputs["target_ids"], -1, axis=1)
    np.testing.assert_allclose(
        model({**inputs, "labels": labels}), token_statistics(labels, logits, 0), atol=1e-4
    )
    # An error in the last bit before rounding to int8 is one of 1/127 of the largest after it.
    tolerance = 0.02 if policy == "float32" else 0.2
    for num_steps in (None, 10):
        cache = model.start_decoding(inputs["source_ids"], num_steps=num_steps)
        for index in range(10):
            step, cache = model.decode_step(inputs["target_ids"][:, index], index, cache)
            np.testing.assert_allclose(step, logits[:, index], atol=tolerance)

    # Twice, because a loaded model may be saved again.
    for name in ("once.keras", "twice.keras"):
        model.save(tmp_path / name)
        model = keras.models.load_model(tmp_path / name)
        np.testing.assert_allclose(model(inputs), logits, atol=1e-5)
        assert model.encoder.layers[0].feed_forward.expand.kernel.dtype == "int8"


def test_one_shared_matrix_learns_from_source_target_and_output(randomise):
    tied = randomise(Transformer(TINY))
    untied = Transformer(dataclasses.replace(TINY, tie_embeddings=False))
    (matrix,) = [v for v in tied.trainable_variables if v.shape == (13, 12)]
    untied.encoder.set_weights(tied.encoder.get_weights())
    untied.decoder.set_weights(tied.decoder.get_weights())
    separate = (
        untied.source_embedding.embedding.embeddings,
        untied.target_embedding.embedding.embeddings,
        untied.output_projection.kernel,
    )
    for variable, value in zip(separate, (matrix, matrix, np.transpose(matrix)), strict=True):
        variable.assign(value)
    wanted = np.random.default_rng(5).normal(size=(2, 6, 13))

    def gradients(model, *variables):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(batch(TINY)) * wanted)
        parts = tape.gradient(total, [variable.value for variable in variables])
        return [np.asarray(tf.convert_to_tensor(part)) for part in parts]

    source, target, output = gradients(untied, *separate)
    for part in (source, target, output):
        assert np.abs(part).max() > 1e-2
    (shared,) = gradients(tied, matrix)
    np.testing.assert_allclose(shared, source + target + output.T, rtol=1e-3, atol=1e-3)


@EVERY_VARIANT
def test_gradients_reach_every_variable(config, model_of):
    model = model_of(config)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(batch(config), training=True) ** 2)
    for variable, gradient in zip(
        model.trainable_variables, tape.gradient(total, model.trainable_variables), strict=True
    ):
        gradient = np.asarray(tf.convert_to_tensor(gradient))
        assert np.isfinite(gradient).all(), variable.path
        assert np.abs(gradient).max() > 1e-6, variable.path


def test_dropout_acts_in_training_only():
    keras.utils.set_random_seed(2)
    model = Transformer(dataclasses.replace(TINY, dropout_rate=0.3))
    quiet = np.asarray(model(batch(TINY)))
    np.testing.assert_array_equal(model(batch(TINY), training=False), quiet)
    noisy = [np.asarray(model(batch(TINY), training=True)) for _ in range(2)]
    for one, other in [(noisy[0], quiet), (noisy[1], quiet), noisy]:
        assert np.abs(one - other).max() > 1e-2


@TWO_VARIANTS
def test_a_fresh_process_loads_the_saved_model(name, model_of, tmp_path):
    model, inputs = model_of(VARIANTS[name]), batch(VARIANTS[name])
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "inputs.npz", **inputs)
    script = (
        "import keras, numpy\nfrom tf_transformer import Transformer\n"
        "model = keras.models.load_model('model.keras')\n"
        "numpy.save('logits.npy', model(dict(numpy.load('inputs.npz'))))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True)
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), model(inputs), atol=1e-6)


def test_config_round_trip(randomise):
    config = VARIANTS["post-norm, untied, pad 3"]
    model = randomise(Transformer(config, name="here", dtype="mixed_bfloat16"))
    twin = Transformer.from_config(model.get_config())
    assert twin.config == config == TransformerConfig(**config.to_dict())
    assert twin.name == "here" and twin.dtype_policy == model.dtype_policy
    twin.set_weights(model.get_weights())
    np.testing.assert_array_equal(twin(batch(config)), model(batch(config)))


def test_the_model_is_a_part_of_a_functional_model(model_of):
    model = model_of(TINY)
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in batch(TINY)}
    whole = keras.Model(inputs, model(inputs))
    assert whole.output_shape == (None, None, 13)
    np.testing.assert_allclose(whole(batch(TINY)), model(batch(TINY)), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "d_model.*multiple of num_heads=5.*d_model=12"),
        ({"d_model": 9}, "d_model must be even.*d_model=9"),
        ({"target_vocab_size": 14}, "source_vocab_size=13.*target_vocab_size=14"),
        ({"dropout_rate": 1.0}, "dropout_rate.*at least 0 and less than 1.*dropout_rate=1.0"),
        ({"dropout_rate": -0.1}, "dropout_rate.*at least 0 and less than 1.*dropout_rate=-0.1"),
        ({"attention_dropout_rate": 2.0}, "attention_dropout_rate=2.0"),
        *(({name: 0}, f"{name} must be greater than 0.*{name}=0")
          for name in ("source_vocab_size", "num_layers", "d_model", "num_heads", "d_ff")),
    ],
)  # fmt: skip
def test_an_invalid_size_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **changes)
