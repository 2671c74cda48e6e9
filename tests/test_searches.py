"""Greedy and beam search: against a loop in NumPy and brute force; what both share."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from step_models import (
    EOS,
    LONGEST,
    NEG_INF,
    SPECIAL,
    VOCAB_SIZE,
    Case,
    Markov,
    Tables,
    arrays,
    assert_found,
    every_hypothesis,
    hypotheses_of,
    search_loop,
)

import tf_transformer as tt
from tf_transformer.decoding.beam import beam_search
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.result import beam_score
from tf_transformer.decoding.top_k import blockwise_top_k

LENGTH_PENALTIES = (0.0, 0.6, 1.0)


# Against a loop that never stops early; greedy search is that of one hypothesis


@pytest.mark.parametrize("length_penalty", LENGTH_PENALTIES)
@pytest.mark.parametrize("beam_size", [None, 1, 2, 4, 7])
def test_a_search_is_the_loop_without_an_early_stop(length_penalty, beam_size):
    size, model = beam_size or 1, Markov()
    case = Case(model, model.sources(60), SPECIAL)
    limits = np.arange(len(case.sources), dtype="int32") % (LONGEST + 1)
    expected = [
        search_loop(lambda tokens, s=source: model.logits(s, tokens), limit, size, length_penalty)
        for source, limit in zip(case.sources, limits, strict=True)
    ]
    # The sources cover all cases: ended, truncated and both; empty, and ended at the limit.
    assert {truncated for rows in expected for *_, truncated in rows} == {True, False}
    if size > 1:
        assert any(rows[0][3] != rows[-1][3] for rows in expected)
    else:
        rows = zip(expected, limits, strict=True)
        ended = {(len(ids), limit) for [(_, _, ids, truncated)], limit in rows if not truncated}
        assert any(not n for n, _ in ended) and any(n == limit > 0 for n, limit in ended)
    for n_best in sorted({1, 2, size} & set(range(size + 1))):
        found = case.search(tf.constant(case.sources), limits, beam_size, length_penalty, n_best)
        assert_found(arrays(found), expected)


# Against brute force


@given(
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.integers(3, 4),
    length_penalty=st.sampled_from(LENGTH_PENALTIES),
    n_best=st.sampled_from([1, 2, 5, 60]),
    peak=st.sampled_from([0.3, 1.0, 4.0]),
)
@settings(max_examples=12, deadline=None)
def test_an_exhaustive_beam_finds_the_best(seed, vocab_size, length_penalty, n_best, peak):
    random = np.random.default_rng(seed)
    limits = random.integers(1, 4, 4).astype("int32")
    num_prefixes = sum(vocab_size**n for n in range(4))
    tables = random.normal(scale=peak, size=(4, num_prefixes, vocab_size)).astype("float32")
    pad, bos, eos = 0, 1, 2
    # Where no end is possible, hypotheses are truncated.
    tables[..., eos][random.random(tables.shape[:2]) < 0.4] = NEG_INF
    tables[..., pad][random.random(tables.shape[:2]) < 0.1] = NEG_INF
    case = Case(Tables(), tables, {"pad_id": pad, "bos_id": bos, "eos_id": eos})
    beam_size = vocab_size * (vocab_size - 1) ** 3  # the largest number of continuations
    n_best = min(n_best, beam_size)
    found = arrays(case.search(tf.constant(tables), limits, beam_size, length_penalty, n_best))
    for sentence, limit in enumerate(limits):
        every = every_hypothesis(tables[sentence], limit, length_penalty, eos)
        # Those that ended come first.
        ranked = sorted((truncated, -score) for (_, truncated), (_, score) in every.items())
        expected = [-score for _, score in ranked][:n_best]
        missing = n_best - len(expected)
        np.testing.assert_allclose(
            found.scores[sentence], expected + [NEG_INF] * missing, atol=1e-5
        )
        hypotheses = hypotheses_of(found, sentence)
        assert hypotheses[len(expected) :] == [((), False)] * missing
        assert len({*hypotheses[: len(expected)]}) == len(expected)
        for rank, hypothesis in enumerate(hypotheses[: len(expected)]):
            values = found.log_probs[sentence, rank], found.scores[sentence, rank]
            assert values == pytest.approx(every[hypothesis], abs=1e-5)


@pytest.mark.parametrize(
    ("limit", "length_penalty", "n_best", "steps"),
    # The end token has probability 0.9: log 0.9 is -0.105, and a live hypothesis scores at most
    # log 0.0125 / ((5 + limit + 1) / 6) ** length_penalty.
    [(30, 0.0, 1, 1), (30, 1.0, 1, 1), (243, 1.0, 1, 1), (244, 1.0, 1, 2), (30, 0.0, 2, 2)],
)
def test_the_search_stops_once_no_live_beam_can_reach_the_best(
    limit, length_penalty, n_best, steps
):
    probabilities = np.where(np.arange(VOCAB_SIZE) == EOS, 0.9, 0.1 / (VOCAB_SIZE - 1))
    calls = []

    def step(token_ids, index, cache):
        calls.append(int(index))
        return tf.tile(tf.constant(np.log(probabilities)[None], tf.float32), [16, 1]), cache

    options = {"length_penalty": length_penalty, "n_best": n_best, **SPECIAL}
    beam_search(step, {"source": {}, "target": {}}, tf.fill([4], limit), beam_size=4, **options)
    assert calls == list(range(steps))


# What both searches share

LIMITS = np.arange(12, dtype="int32") % 7


@pytest.fixture(scope="module", params=["greedy", "beam"])
def search(request):
    """A search with a model's sources: `search(model, decode_step=…, cache=…, limits=…, …)`."""
    beam_size = None if request.param == "greedy" else 3

    def search(model, **kwargs):
        sources = tf.constant(model.sources(len(LIMITS)))
        arguments = {
            "decode_step": model.decode_step,
            "cache": model.start_decoding(sources),
            "limits": LIMITS,
            **SPECIAL,
        }
        if beam_size is None:
            return greedy_search(**{**arguments, **kwargs})
        return beam_search(**{**arguments, "beam_size": beam_size, "n_best": 2, **kwargs})

    search.beam_size = beam_size or 1
    return search


def assert_equal(found, expected):
    for name, array in arrays(found)._asdict().items():
        assert array.tolist() == getattr(arrays(expected), name).tolist(), name


def test_logits_of_half_precision_are_computed_in_float32(search):
    model = Markov()

    def rounded(to):
        def step(*args):
            logits, cache = model.decode_step(*args)
            return tf.cast(tf.cast(logits, "bfloat16"), to), cache

        return step

    run = tf.function(search)
    found = run(model, decode_step=rounded("bfloat16"))
    assert_equal(found, run(model, decode_step=rounded("float32")))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length_penalty": np.nan}, "length_penalty must be from 0 to 10"),
        ({"length_penalty": -0.1}, "length_penalty must be from 0 to 10"),
        ({"length_penalty": np.inf}, "length_penalty must be from 0 to 10"),
        ({"limits": 5}, "limits must have a number from 0 for each sentence"),
        ({"limits": [3, -1]}, "limits must have a number from 0 for each sentence"),
        ({"cache": {"target": {}, "sources": {}}}, "unknown part 'sources'"),
    ],
)
def test_values_with_which_a_search_would_silently_be_wrong_are_refused(search, wrong, message):
    with pytest.raises(ValueError, match=message):
        search(Markov(), **wrong)


@pytest.mark.parametrize("number", [np.int64, np.uint8, functools.partial(tf.cast, dtype="int64")])
def test_sizes_and_limits_may_be_any_integers(number):
    model = Markov()
    sources = tf.constant(model.sources(4))
    case = Case(model, sources, SPECIAL)
    expected = case.search(sources, [5] * 4, 3, n_best=2)
    found = case.search(sources, tf.fill([4], tf.cast(5, "int64")), number(3), n_best=number(2))
    assert_equal(found, expected)


@pytest.mark.parametrize("n_best", [0, tf.constant(4)])
@pytest.mark.parametrize("search", ["beam"], indirect=True)
def test_more_than_the_beam_cannot_be_returned(search, n_best):
    with pytest.raises(ValueError, match="n_best must be from 1 to beam_size=3"):
        search(Markov(), n_best=n_best)


def test_sentences_that_are_done_are_removed_from_the_batch(search):
    lengths, sizes = (1, 9, 1, 5, 0, 1, 7, 9), []
    wanted = tf.constant([[4] * n + [EOS] * (12 - n) for n in lengths])

    def step(token_ids, index, cache):
        wanted = cache["source"]["wanted"]
        sizes.append(len(wanted) // search.beam_size)
        # So certain that the search stops at the end token.
        return tf.one_hot(wanted[:, index], VOCAB_SIZE, on_value=20.0), cache

    cache = {"source": {"wanted": wanted}, "target": {}}
    found = search(
        Markov(), decode_step=step, cache=cache, limits=tf.fill([8], 11), length_penalty=0.0
    )
    # A beam goes on until its second best hypothesis has ended, too.
    assert sizes in ([8, 8, 4, 4, 4, 4, 3, 3, 2, 2], [8, 8, 8, 4, 4, 4, 4, 3, 3, 2, 2])
    assert found.lengths[:, 0].numpy().tolist() == list(lengths)


# Scores, limits and top k


def test_known_scores_and_limits():
    scores = beam_score(tf.fill([3], -6.0), tf.constant([1, 7, 13]), 1.0)
    assert scores.numpy().tolist() == [-6, -3, -2]
    assert float(beam_score(-1.0, 19, tf.constant(0.6))) == pytest.approx(-(4**-0.6))
    assert float(beam_score(NEG_INF, 3, 0.6)) == NEG_INF
    limits = tt.Search().output_limits(tf.constant([0, 1, 7, 59, 60]))
    assert limits.numpy().tolist() == [10, 12, 24, 128, 128]
    search = tt.Search(max_length=20, max_length_ratio=0.5)
    assert search.output_limits(tf.constant([3, 40])).numpy().tolist() == [11, 20]
    unlimited = tt.Search(max_length_ratio=float("inf"))
    assert unlimited.output_limits(tf.constant([3])).numpy().tolist() == [128]


@given(
    size=st.sampled_from([8000, 7999, 512, 513, 37000, 7993, 9]),
    k=st.integers(1, 20),
    spread=st.sampled_from([0.1, 2.0, 4.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40, deadline=None)
def test_fast_top_k_equals_the_original(size, k, spread, seed):
    group, k = 1 + seed % 3, min(k, size)
    # Large values are rare, so that equal values also lie in blocks with unequal maxima.
    values = np.floor(np.random.default_rng(seed).normal(scale=spread, size=(2 * group, size)))
    values = values.astype("float32")
    values[1, seed % size :] = NEG_INF
    offsets = np.arange(2 * group, dtype="float32")[:, None] % 3
    found = blockwise_top_k(tf.constant(values), k, tf.constant(offsets), group)
    expected = tf.math.top_k((values + offsets).reshape(2, group * size), k)
    assert found[0].numpy().tolist() == expected[0].numpy().tolist()
    assert found[1].numpy().tolist() == expected[1].numpy().tolist()
