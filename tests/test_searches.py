"""What both searches share: the cache and its shapes, logits, scores, top k, impossible values."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from step_models import EOS, NEG_INF, PAD, SPECIAL, VOCAB_SIZE, Bag, Markov, arrays, of_each

from tf_transformer.decoding import beam_score, beam_search, greedy_search
from tf_transformer.decoding.cache import open_shapes
from tf_transformer.decoding.top_k import blockwise_top_k, iterative_top_k

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
            "limits": LIMITS,
            **SPECIAL,
        }
        if beam_size is None:
            return greedy_search(**{**arguments, **kwargs})
        return beam_search(**{**arguments, "beam_size": beam_size, "n_best": 2, **kwargs})

    return search


def assert_equal(found, expected):
    for name, array in arrays(found)._asdict().items():
        assert array.tolist() == getattr(arrays(expected), name).tolist(), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_logits_of_half_precision_are_computed_in_float32(search, dtype):
    model = Markov()

    def rounded(to):
        def step(*args):
            logits, cache = model.decode_step(*args)
            return tf.cast(tf.cast(logits, dtype), to), cache

        return step

    run = tf.function(search)
    found = run(model, decode_step=rounded(dtype))
    assert_equal(found, run(model, decode_step=rounded("float32")))


# The cache


class FlatBag(Bag):
    """A `Bag` with its whole cache in one dict without parts."""

    def start_decoding(self, sources, num_steps=None, beam_size=None):
        cache = super().start_decoding(sources, num_steps, beam_size)
        return {"bag": tf.repeat(sources, beam_size or 1, axis=0), **cache["target"]}

    def decode_step(self, token_ids, index, cache):
        assert cache.keys() == {"bag", "past"}
        target = {"past": cache["past"]}
        parts = {"constants": {}, "source": {"bag": cache["bag"]}, "target": target}
        logits, parts = super().decode_step(token_ids, index, parts)
        return logits, {"bag": cache["bag"], **parts["target"]}


def test_a_flat_cache_belongs_to_the_hypotheses(search):
    assert_equal(search(FlatBag()), search(Bag()))


def test_a_cache_may_lack_any_part_and_constants_need_not_be_tensors(search):
    bias = Markov().sources(len(LIMITS))

    def step(token_ids, index, cache):
        given.append(cache.keys())
        logits = tf.zeros([len(token_ids), VOCAB_SIZE]) + cache.get("constants", 0.0)
        if "source" in cache:
            logits += of_each(cache["source"]["bias"], token_ids)
        return logits - 99.0 * tf.one_hot([PAD] * len(token_ids), VOCAB_SIZE), cache

    for cache in ({}, {"source": {"bias": bias}}, {"constants": 2.0}, {"history": {}}):
        given = []
        found = search(Markov(), decode_step=step, cache=cache)
        assert found.lengths.shape[0] == len(LIMITS)
        assert given and all(keys == cache.keys() for keys in given)


def test_only_the_first_and_empty_axes_are_open():
    structure = {"keys": tf.zeros([3, 2, 0, 4]), "nested": [tf.zeros([1]), (tf.zeros([0, 5]),)]}
    shapes = open_shapes(structure)
    assert shapes["keys"].as_list() == [None, 2, None, 4]
    assert shapes["nested"][0].as_list() == [None]
    assert shapes["nested"][1][0].as_list() == [None, 5]
    assert open_shapes(tf.constant(0)).as_list() == []


# Values with which a search would silently be wrong


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_steps": 6}, "num_steps must be greater than every limit"),
        ({"length_penalty": -0.1}, "length_penalty must not be negative"),
        ({"cache": {"target": {}, "sources": {}}}, "unknown part 'sources'"),
    ],
)
def test_impossible_values_are_refused(search, wrong, message):
    with pytest.raises(ValueError, match=message):
        search(Markov(), **wrong)


@pytest.mark.parametrize("n_best", [0, 4, tf.constant(4)])
@pytest.mark.parametrize("search", ["beam"], indirect=True)
def test_more_than_the_beam_cannot_be_returned(search, n_best):
    with pytest.raises(ValueError, match="n_best must be from 1 to beam_size=3"):
        search(Markov(), n_best=n_best)


def test_a_vocabulary_may_be_of_unknown_size(search):
    model = Markov()

    @tf.function(autograph=False)
    def run(vocab_size):
        def step(token_ids, index, cache):
            logits, cache = model.decode_step(token_ids, index, cache)
            return logits[:, :vocab_size], cache

        return search(model, decode_step=step)

    assert_equal(run(tf.constant(VOCAB_SIZE)), run(VOCAB_SIZE))


@pytest.mark.parametrize("special", [(0, 2, 3), (8, 1, 0), (3, 0, 8)])
@pytest.mark.parametrize("num_steps", [None, 5])
def test_special_ids_are_the_arguments(search, special, num_steps):
    pad_id, bos_id, eos_id = special
    wanted, first = tf.constant([[5, 6, eos_id, 5], [eos_id, 5, 5, 5]]), []

    def step(token_ids, index, cache):
        first.append(token_ids.numpy())
        logits = tf.one_hot(cache["source"]["wanted"][:, index], VOCAB_SIZE, on_value=20.0)
        # Of the other tokens, the end is the least probable.
        return of_each(logits - tf.one_hot(eos_id, VOCAB_SIZE), token_ids), cache

    ids = {"pad_id": pad_id, "bos_id": bos_id, "eos_id": eos_id}
    cache = {"source": {"wanted": wanted}, "target": {}}
    arguments = {"decode_step": step, "cache": cache, "limits": [3, 3], "num_steps": num_steps}
    found = search(Markov(), **arguments, **ids)
    assert {*first[0].tolist()} == {bos_id}
    ids = found.ids[:, 0].numpy()
    assert ids[:, :2].tolist() == [[5, 6], [pad_id, pad_id]] and (ids[:, 2:] == pad_id).all()
    assert num_steps is None or ids.shape[1] == num_steps
    assert found.lengths[:, 0].numpy().tolist() == [2, 0]


def test_sentences_that_are_done_are_removed_from_the_batch(search):
    lengths, sizes = (1, 9, 1, 5, 0, 1, 7, 9), []
    wanted = tf.constant([[4] * n + [EOS] * (12 - n) for n in lengths])

    def step(token_ids, index, cache):
        wanted = cache["source"]["wanted"]
        sizes.append(len(wanted))
        # So certain that the search stops at the end token.
        return of_each(tf.one_hot(wanted[:, index], VOCAB_SIZE, on_value=20.0), token_ids), cache

    cache = {"source": {"wanted": wanted}, "target": {}}
    found = search(
        Markov(), decode_step=step, cache=cache, limits=tf.fill([8], 11), length_penalty=0.0
    )
    # A beam goes on until its second best hypothesis has ended, too.
    assert sizes in ([8, 8, 4, 4, 4, 4, 3, 3, 2, 2], [8, 8, 8, 4, 4, 4, 4, 3, 3, 2, 2])
    assert found.lengths[:, 0].numpy().tolist() == list(lengths)


# Scores and top k


def test_known_scores():
    scores = beam_score(tf.fill([3], -6.0), tf.constant([1, 7, 13]), 1.0)
    assert scores.numpy().tolist() == [-6, -3, -2]
    assert float(beam_score(-2.0, 19, 0.5)) == -1.0
    assert float(beam_score(-1.0, 19, tf.constant(0.6))) == pytest.approx(-(4**-0.6))
    for length_penalty in (0.0, 0.6, 1.0):
        assert float(beam_score(-1.0, 1, length_penalty)) == -1.0
        assert float(beam_score(NEG_INF, 3, length_penalty)) == NEG_INF


@given(
    size=st.sampled_from([8000, 7999, 512, 1000, 37000, 7993, 9]),
    top_k=st.sampled_from([tf.math.top_k, iterative_top_k]),
    k=st.integers(1, 20),
    spread=st.sampled_from([0.1, 2.0, 4.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_fast_top_k_equals_the_original(size, top_k, k, spread, seed):
    k = min(k, size)
    # Large values are rare, so that equal values also lie in blocks with unequal maxima.
    values = np.floor(np.random.default_rng(seed).normal(scale=spread, size=(3, size)))
    values = values.astype("float32")
    values[2, seed % size :] = NEG_INF
    found = blockwise_top_k(tf.constant(values), k, top_k)
    expected = tf.math.top_k(values, k)
    assert found[0].numpy().tolist() == expected[0].numpy().tolist()
    assert found[1].numpy().tolist() == expected[1].numpy().tolist()
