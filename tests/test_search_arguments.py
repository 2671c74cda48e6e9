"""What the searches accept, and the errors for what they do not."""

import numpy as np
import pytest
import tensorflow as tf
from step_models import (
    BOS,
    EOS,
    PAD,
    SPECIAL,
    VOCAB_SIZE,
    Bag,
    Markov,
    arrays,
    make_case,
    num_hypotheses,
    of_each,
)

from tf_transformer.decoding import beam_search, greedy_search

LIMITS = np.arange(12, dtype="int32") % 7


@pytest.fixture(scope="module", params=["greedy", "beam"])
def search(request):
    """A search with a model's sources: `search(model, decode_step=…, cache=…, limits=…, …)`."""
    beam_size = None if request.param == "greedy" else 3

    def search(model, **kwargs):
        sources = tf.constant(model.sources(len(LIMITS)))
        arguments = {
            "decode_step": model.decode_step,
            "cache": model.start_decoding(sources, beam_size=beam_size),
            "limits": tf.constant(LIMITS),
            **SPECIAL,
        }
        if beam_size is None:
            return greedy_search(**{**arguments, **kwargs})
        return beam_search(**{**arguments, "beam_size": beam_size, "n_best": 2, **kwargs})

    search.beam_size = beam_size
    return search


def assert_equal(found, expected):
    for name, array in arrays(found)._asdict().items():
        assert array.tolist() == getattr(arrays(expected), name).tolist(), name


# Accepted


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_logits_of_other_precisions_are_computed_in_float32(search, dtype, in_graph):
    model = Markov()

    def rounded(dtype):
        """Steps whose logits have float16's or bfloat16's values in the given dtype."""

        def step(*args):
            logits, cache = model.decode_step(*args)
            return tf.cast(tf.cast(logits, half), dtype), cache

        return step

    half = "bfloat16" if dtype == "bfloat16" else "float16"
    run = tf.function(search) if in_graph else search
    found = run(model, decode_step=rounded(dtype))
    assert_equal(found, run(model, decode_step=rounded("float32")))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_and_its_cache_may_be_in_half_precision(search, dtype):
    model, expected = Bag(), Bag()
    for name in ("embeddings", "output", "bias"):
        half = tf.cast(getattr(model, name), dtype)
        setattr(model, name, half)
        setattr(expected, name, tf.cast(half, tf.float32))

    def start(sources):
        past = tf.zeros([num_hypotheses(sources, search.beam_size), 0, 4], dtype)
        return {"constants": {}, "source": {"bag": sources}, "target": {"past": past}}

    sources = tf.cast(model.sources(len(LIMITS)), dtype)
    found = search(model, cache=start(sources), limits=[0] * len(LIMITS))
    log_probs = tf.nn.log_softmax(
        tf.tanh(tf.cast(sources, tf.float32) + expected.embeddings[BOS]) @ expected.output
        + expected.bias
    )
    ended = ~found.truncated[:, 0].numpy()
    assert np.count_nonzero(ended) > 0
    np.testing.assert_allclose(found.log_probs[:, 0][ended], log_probs[:, EOS][ended], atol=0.1)


@pytest.mark.parametrize(
    "limits",
    [
        LIMITS.tolist(),
        tuple(LIMITS.tolist()),
        LIMITS,
        LIMITS.astype("int64"),
        LIMITS.astype("uint8"),
        tf.constant(LIMITS, tf.int64),
    ],
    ids=["list", "tuple", "array", "int64 array", "uint8 array", "int64"],
)
def test_limits_may_be_any_integers(search, limits):
    model = Markov()
    assert_equal(search(model, limits=limits), search(model))


def test_limits_may_be_an_empty_list(search):
    model = Markov()
    cache = model.start_decoding(model.sources(0), beam_size=search.beam_size)
    found = arrays(search(model, limits=[], cache=cache))
    assert found.lengths.shape[0] == 0


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_limit_may_be_the_largest_integer(search, dtype):
    model = Bag()

    def step(token_ids, index, cache):
        logits, cache = model.decode_step(token_ids, index, cache)
        return (logits if index < 4 else tf.one_hot([EOS] * len(token_ids), VOCAB_SIZE)), cache

    limits = np.full(len(LIMITS), np.iinfo(dtype).max, dtype)
    found = search(model, decode_step=step, limits=limits)
    assert not found.truncated[:, 0].numpy().any()
    assert_equal(found, search(model, decode_step=step, limits=[50] * len(LIMITS)))


def test_caches_and_results_may_be_arrays(search):
    model = Markov()

    def step(token_ids, index, cache):
        logits, cache = model.decode_step(token_ids, index, cache)
        return logits.numpy(), tf.nest.map_structure(np.asarray, cache)

    cache = model.start_decoding(model.sources(len(LIMITS)), beam_size=search.beam_size)
    cache = tf.nest.map_structure(np.asarray, cache)
    assert_equal(search(model, cache=cache), search(model))
    assert_equal(search(model, cache=cache, decode_step=step), search(model))


def test_sizes_may_be_integers_of_other_types():
    case = make_case("markov")
    sources = tf.constant(case.sources[:12])
    expected = case.beam(sources, LIMITS, 3, 0.5, n_best=2)
    for integer in (np.int64, np.asarray, tf.constant, lambda n: tf.constant(n, tf.int64)):
        special = {name: np.int64(i) for name, i in SPECIAL.items()}
        found = beam_search(
            case.model.decode_step, case.start(sources, beam_size=3), LIMITS,
            beam_size=integer(3), n_best=integer(2), length_penalty=tf.constant(0.5, tf.float16),
            **special,
        )  # fmt: skip
        assert_equal(found, expected)
        fixed = case._replace(special=special).beam(
            sources, LIMITS, 3, np.float64(0.5), n_best=2, num_steps=integer(8)
        )
        assert fixed.ids.shape[2] == 8
        assert (
            fixed.ids[:, :, : expected.ids.shape[2]].numpy().tolist()
            == expected.ids.numpy().tolist()
        )


# Flat caches and missing parts


class FlatBag(Bag):
    """A `Bag` with its whole cache in one dict without parts."""

    def start_decoding(self, sources, num_steps=None, beam_size=None):
        cache = super().start_decoding(sources, num_steps, beam_size)
        return {"bag": tf.repeat(sources, beam_size or 1, axis=0), **cache["target"]}

    def decode_step(self, token_ids, index, cache):
        assert cache.keys() == {"bag", "past"}
        parts = {
            "constants": {},
            "source": {"bag": cache["bag"]},
            "target": {"past": cache["past"]},
        }
        logits, parts = super().decode_step(token_ids, index, parts)
        return logits, {"bag": cache["bag"], **parts["target"]}


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_a_flat_cache_belongs_to_the_hypotheses(search, in_graph):
    run = tf.function(search) if in_graph else search
    assert_equal(run(FlatBag()), run(Bag()))


@pytest.mark.parametrize("num_steps", [None, 8])
def test_a_cache_may_lack_any_part(search, num_steps):
    bias = tf.constant(Markov().sources(len(LIMITS)))

    def step(token_ids, index, cache):
        given.append(cache.keys())
        logits = tf.zeros([len(token_ids), VOCAB_SIZE])
        if "source" in cache:
            logits += of_each(cache["source"]["bias"], token_ids)
        return logits - 99.0 * tf.one_hot([PAD] * len(token_ids), VOCAB_SIZE), cache

    for cache in ({}, {"source": {"bias": bias}}, {"constants": {}}, {"history": {}}):
        given = []
        found = search(Markov(), decode_step=step, cache=cache, num_steps=num_steps)
        assert found.lengths.shape[0] == len(LIMITS)
        assert given and all(keys == cache.keys() for keys in given)


def test_constants_need_not_be_tensors(search):
    def step(token_ids, index, cache):
        assert cache["constants"]["scale"] == 2
        return tf.one_hot(token_ids + 1, VOCAB_SIZE) * cache["constants"]["scale"], cache

    cache = {"constants": {"scale": 2}}
    found = search(Markov(), decode_step=step, cache=cache)
    assert found.lengths.shape[0] == len(LIMITS)


# Errors


def step_with(logits=None, result=None):
    def step(token_ids, index, cache):
        return result if logits is None else (logits(token_ids), cache)

    return {"decode_step": step}


def of_vocabulary(size):
    return step_with(lambda token_ids: tf.zeros([len(token_ids), size]))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"limits": 3}, ValueError, r"limits must have the shape \(B,\).*received.*\(\)"),
        ({"limits": LIMITS[:, None]}, ValueError, r"limits must.*received.*\(12, 1\)"),
        ({"limits": [1.5] * 12}, TypeError, "limits must be integers.*received float32"),
        ({"limits": [True] * 12}, TypeError, "limits must be integers.*received bool"),
        ({"limits": ["a"] * 12}, TypeError, "limits must be integers.*received string"),
        ({"limits": [[1], [1, 2]]}, TypeError, "limits must be integers.*received list"),
        ({"limits": None}, TypeError, "limits must be integers.*received NoneType"),
        ({"limits": LIMITS - 1}, ValueError, "limits must not be negative.*received -1"),
        ({"limits": LIMITS, "num_steps": 6}, ValueError, "num_steps must be.*than.*6.*num_steps=6"),
        ({"num_steps": 0, "limits": []}, ValueError, "num_steps must be at least 1.*num_steps=0"),
        ({"num_steps": 7.0}, TypeError, "num_steps must be an integer.*received 7.0"),
        ({"length_penalty": -0.1}, ValueError, "length_penalty must not be neg.*received -0.1"),
        ({"length_penalty": float("nan")}, ValueError, "length_penalty must not be.*nan"),
        ({"length_penalty": "0.6"}, TypeError, "length_penalty must be a number.*received '0.6'"),
        ({"eos_id": -1}, ValueError, "eos_id must not be negative.*eos_id=-1"),
        ({"bos_id": 1.0}, TypeError, "bos_id must be an integer.*1.0"),
        ({"pad_id": None}, TypeError, "pad_id must be an integer.*None"),
        ({"decode_step": None}, TypeError, "decode_step must be callable.*received None"),
        (step_with(result=tf.zeros([12, 9])), TypeError, r"decode_step.*\(logits, cache\).*Tensor"),
        (step_with(result=(1, 2, 3)), TypeError, r"decode_step.*\(logits, cache\).*tuple of 3"),
        (step_with(result=None), TypeError, r"decode_step.*\(logits, cache\).*NoneType"),
        (step_with(lambda ids: tf.zeros([len(ids)])), ValueError, r"logits.*\(N, V\).*shape \("),
        (
            step_with(lambda ids: tf.zeros([len(ids), 1, 9])),
            ValueError, r"logits.*\(N, V\).*shape \(\d+, 1, 9\)",
        ),
        (
            step_with(lambda ids: tf.zeros([len(ids) + 1, 9])),
            ValueError, r"logits.*\(N, V\).*N=(12|36).*shape \((13|37), 9\)",
        ),
        (
            step_with(lambda ids: tf.zeros([len(ids), 9], tf.int32)),
            TypeError, "logits.*float.*received int32",
        ),
        (step_with(lambda ids: None), TypeError, "logits.*float.*received NoneType"),
        (of_vocabulary(3), ValueError, "vocabulary.*eos_id=3.*received V=3"),
        ({**of_vocabulary(9), "pad_id": 9}, ValueError, "vocabulary.*pad_id=9.*received V=9"),
        ({**of_vocabulary(9), "bos_id": 12}, ValueError, "vocabulary.*bos_id=12.*received V=9"),
        ({"cache": None}, TypeError, "cache must be a dict.*received NoneType"),
        ({"cache": [tf.zeros([12])]}, TypeError, "cache must be a dict.*received list"),
        (
            {"cache": {"target": {}, "sources": {}}},
            ValueError, "unknown part.*'sources'.*constants, source, history, target",
        ),
        ({"cache": {"target": {"x": None}}}, TypeError, "'target'.*tensors.*NoneType"),
        ({"cache": {"count": 3}}, ValueError, r"'target'.*\(N, …\).*shape \(\)"),
        (
            {"cache": {"x": tf.zeros([7, 2])}},
            ValueError, r"'target'.*beam_size = (12|36); .*shape \(7, 2\)",
        ),
        ({"cache": {"source": tf.zeros([7])}}, ValueError, r"'source'.*B = 12; .*shape \(7,\)"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line(search, wrong, error, message):
    with pytest.raises(error, match=message) as raised:
        search(Markov(), **wrong)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "changed",
    [{}, {"target": {}}, {"target": {"state": {}}}, {"target": None}, "target", None],
)
def test_a_step_that_returns_another_cache_is_an_error(search, changed):
    model = Markov()

    def step(*args):
        return model.decode_step(*args)[0], changed

    for run in (search, tf.function(search, autograph=False)):
        with pytest.raises(
            (ValueError, TypeError), match=r"decode_step must return.*cache"
        ) as raised:
            run(model, decode_step=step)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"beam_size": 0}, ValueError, "beam_size must be at least 1; received beam_size=0"),
        ({"beam_size": tf.constant(-1)}, ValueError, "beam_size must be at least 1.*beam_size=-1"),
        ({"beam_size": 2.0}, TypeError, "beam_size must be an integer.*2.0"),
        ({"beam_size": tf.constant(2.0)}, TypeError, "beam_size must be an integer"),
        ({"beam_size": [3]}, TypeError, "beam_size must be an integer"),
        ({"beam_size": tf.constant([3])}, TypeError, "beam_size must be an integer"),
        ({"n_best": 0}, ValueError, "n_best must be at least 1; received n_best=0"),
        ({"n_best": 4}, ValueError, "n_best must be at most beam_size=3; received n_best=4"),
        ({"n_best": tf.constant(4)}, ValueError, "n_best must be at most beam_size=3.*n_best=4"),
        # The cache was started with another beam size.
        ({"beam_size": 2}, ValueError, r"'target'.*beam_size = 24; .*shape \(36,\)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("search", ["beam"], indirect=True)
def test_wrong_sizes_of_a_beam_are_one_line(search, wrong, error, message):
    with pytest.raises(error, match=message) as raised:
        search(Markov(), **wrong)
    assert "\n" not in str(raised.value)


def test_a_vocabulary_may_be_of_unknown_size(search):
    model = Markov()

    @tf.function(autograph=False)
    def run(vocab_size):
        def step(token_ids, index, cache):
            logits, cache = model.decode_step(token_ids, index, cache)
            logits = logits[:, :vocab_size]
            assert (logits.shape[1] is None) == tf.is_tensor(vocab_size)
            return logits, cache

        return search(model, decode_step=step)

    assert_equal(run(tf.constant(VOCAB_SIZE)), run(VOCAB_SIZE))
