"""Tests of beam search: against greedy search, brute force and a loop in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from step_models import (
    BOS,
    EOS,
    MODELS,
    NEG_INF,
    NUM_STEPS,
    PAD,
    SPECIAL,
    STEP_MODELS,
    VOCAB_SIZE,
    Bag,
    Case,
    arrays,
    cases,
    every_hypothesis,
    hypotheses_of,
    log_softmax,
    make_case,
    num_hypotheses,
    of_each,
    some_limits,
)

from tf_transformer.decoding import beam_search

LENGTH_PENALTIES = (0.0, 0.6, 1.0)


@pytest.fixture(scope="module")
def case(request):
    return make_case(request.param)


# Against greedy search


@cases(*STEP_MODELS, *MODELS)
@pytest.mark.parametrize("mode", ["growing", "fixed", "compiled"])
def test_a_beam_of_one_is_greedy_search(case, mode):
    num_steps = None if mode == "growing" else NUM_STEPS
    greedy = tf.function(
        lambda *args: case.greedy(*args, num_steps=num_steps), jit_compile=mode == "compiled"
    )
    beam = tf.function(
        lambda sources, limits, penalty: case.beam(sources, limits, 1, penalty, 1, num_steps),
        jit_compile=mode == "compiled",
    )
    sources = tf.constant(case.sources)
    for limits in some_limits(len(sources)):
        for length_penalty in LENGTH_PENALTIES:
            args = sources, tf.constant(limits), tf.constant(length_penalty)
            expected, found = arrays(greedy(*args)), arrays(beam(*args))
            for name in ("ids", "lengths", "truncated"):
                assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name
            # The two compact their batches at different steps, so products round differently.
            np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=2e-5)
            np.testing.assert_allclose(found.scores, expected.scores, atol=2e-5)


# Against brute force


class Tables:
    """Logits from a table of all prefixes, one table for each sentence."""

    def start_decoding(self, tables, num_steps=None, beam_size=None):
        return {
            "source": {"tables": tables},
            "target": {"prefix": tf.zeros([num_hypotheses(tables, beam_size)], tf.int32)},
        }

    def decode_step(self, token_ids, index, cache):
        tables, prefix = of_each(cache["source"]["tables"], token_ids), cache["target"]["prefix"]
        prefix = tf.where(index == 0, 0, prefix * tables.shape[2] + token_ids + 1)
        logits = tf.gather(tables, prefix, batch_dims=1)
        return logits, {"source": cache["source"], "target": {"prefix": prefix}}


@given(
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.integers(3, 4),
    length_penalty=st.sampled_from(LENGTH_PENALTIES),
    n_best=st.sampled_from([1, 2, 5, 60]),
    peak=st.sampled_from([0.3, 1.0, 4.0]),
)
@settings(max_examples=15, deadline=None)
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
    found = arrays(
        case.beam(tf.constant(tables), tf.constant(limits), beam_size, length_penalty, n_best)
    )
    for sentence, limit in enumerate(limits):
        ended, truncated = every_hypothesis(tables[sentence], limit, length_penalty, eos)
        expected = [
            sorted((score for _, score in part.values()), reverse=True)
            for part in (ended, truncated)
        ]
        expected = [*expected[0], *expected[1], *[NEG_INF] * n_best][:n_best]
        np.testing.assert_allclose(found.scores[sentence], expected, atol=1e-5)
        hypotheses = hypotheses_of(found, sentence)
        num = np.isfinite(expected).sum()
        assert hypotheses[num:] == [((), False)] * (n_best - num)
        assert (found.log_probs[sentence, num:] == NEG_INF).all()
        hypotheses = hypotheses[:num]
        assert [t for _, t in hypotheses] == (np.arange(num) >= len(ended)).tolist()
        assert len(set(hypotheses)) == num
        for rank, (ids, is_truncated) in enumerate(hypotheses):
            log_prob, score = (truncated if is_truncated else ended)[ids]
            assert found.scores[sentence, rank] == pytest.approx(score, abs=1e-5)
            assert found.log_probs[sentence, rank] == pytest.approx(log_prob, abs=1e-5)


# Against a loop that never stops early


def beam_loop(logits_of, limit, beam_size, length_penalty, eos_id=EOS):
    """All hypotheses of one sentence as (score, log_prob, ids, truncated), best first.

    It stops when K hypotheses are finished, which is part of the algorithm, or at the limit.
    """
    live, finished = [(0.0, ())], []
    for index in range(limit + 1):
        continuations = [
            (log_prob + more, ids, token)
            for log_prob, ids in live
            for token, more in enumerate(log_softmax(logits_of([BOS, *ids])))
        ]
        continuations = sorted(continuations, key=lambda c: -c[0])[: 2 * beam_size]
        ending = [(p, ids) for p, ids, token in continuations[:beam_size] if token == eos_id]
        penalty = ((5 + index + 1) / 6) ** length_penalty
        finished += [(p / penalty, p, ids, False) for p, ids in ending]
        finished = sorted(finished, key=lambda f: -f[0])[:beam_size]
        if len(finished) == beam_size:
            return finished
        if index < limit:
            live = [(p, (*ids, token)) for p, ids, token in continuations if token != eos_id]
            live = live[:beam_size]
    penalty, ended = ((5 + limit) / 6) ** length_penalty, {ids for _, ids in ending}
    return finished + [(p / penalty, p, ids, True) for p, ids in live if ids not in ended]


@cases(*STEP_MODELS)
@pytest.mark.parametrize("length_penalty", LENGTH_PENALTIES)
@pytest.mark.parametrize("beam_size", [1, 2, 4, 7])
def test_beam_search_is_the_loop_without_an_early_stop(case, length_penalty, beam_size):
    limits = np.arange(len(case.sources), dtype="int32") % NUM_STEPS
    expected = [
        beam_loop(
            lambda tokens, s=source: case.model.logits(s, tokens), limit, beam_size, length_penalty
        )
        for source, limit in zip(case.sources, limits, strict=True)
    ]
    # The sources cover all cases.
    assert {truncated for rows in expected for *_, truncated in rows} == {True, False}
    if beam_size > 1:
        assert any(rows[0][3] != rows[-1][3] for rows in expected)
    for n_best in sorted({1, 2, beam_size} & set(range(beam_size + 1))):
        sources = tf.constant(case.sources)
        found = arrays(case.beam(sources, tf.constant(limits), beam_size, length_penalty, n_best))
        assert found.ids.shape[:2] == found.scores.shape == (len(limits), n_best)
        assert found.ids.shape[2] == found.lengths.max()
        for sentence, rows in enumerate(expected):
            rows = rows[:n_best]
            assert hypotheses_of(found, sentence)[: len(rows)] == [row[2:] for row in rows]
            none = [NEG_INF] * (n_best - len(rows))
            scores, log_probs = [row[0] for row in rows] + none, [row[1] for row in rows] + none
            np.testing.assert_allclose(found.scores[sentence], scores, atol=1e-4)
            np.testing.assert_allclose(found.log_probs[sentence], log_probs, atol=1e-4)


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

    cache = {"source": {}, "target": {}}
    beam_search(
        step, cache, tf.fill([4], limit), beam_size=4, length_penalty=length_penalty,
        n_best=n_best, **SPECIAL,
    )  # fmt: skip
    assert calls == list(range(steps))


# Finished hypotheses


def test_of_equal_scores_the_older_comes_first():
    """Half of the probability ends at once, the other half certainly one step later."""
    first, second = np.full([2, VOCAB_SIZE], NEG_INF, "float32")
    first[[EOS, 5]], second[EOS] = 0.0, 0.0

    def step(token_ids, index, cache):
        return tf.where((token_ids == BOS)[:, None], first, second), cache

    cache = {"source": {}, "target": {}}
    found = arrays(
        beam_search(
            step, cache, tf.constant([4]), beam_size=2, length_penalty=0.0, n_best=2, **SPECIAL
        )
    )
    assert found.scores.tolist() == [[np.float32(np.log(0.5))] * 2]
    assert hypotheses_of(found, 0) == [((), False), ((5,), False)]


# The cache


def test_only_the_target_is_reordered():
    model, pasts = Bag(), []

    def step(token_ids, index, cache):
        past, history = cache["target"]["ids"], cache["history"]["ids"]
        # The history holds the hypotheses of each sentence side by side, as they were appended.
        live = cache["source"]["indices"].numpy()
        seen = np.stack(pasts, axis=2)[live] if pasts else np.zeros([12, 3, 0])
        assert history.numpy().tolist() == seen.tolist()
        pasts.append(np.full([12, 3], PAD))
        pasts[-1][live] = tf.reshape(token_ids, [-1, 3])
        history = tf.concat([history, pasts[-1][live][..., None]], axis=2)
        past = tf.concat([past, token_ids[:, None]], axis=1)
        # The model itself reads only the target.
        embedded = tf.reduce_sum(tf.gather(model.embeddings, past), axis=1)
        bag = of_each(cache["source"]["bag"], token_ids)
        logits = tf.tanh(bag + embedded) @ model.output + model.bias
        changed = {"target": {"ids": past}, "history": {"ids": history}}
        return logits, {"source": cache["source"], **changed}

    sources = model.sources(12)
    cache = {
        "source": {"bag": tf.constant(sources), "indices": tf.range(12)},
        "target": {"ids": tf.zeros([36, 0], tf.int32)},
        "history": {"ids": tf.zeros([12, 3, 0], tf.int32)},
    }
    found = arrays(beam_search(step, cache, tf.fill([12], 6), beam_size=3, n_best=3, **SPECIAL))
    assert len(pasts) == 7
    for sentence, source in enumerate(sources):
        expected = beam_loop(lambda tokens, s=source: model.logits(s, tokens), 6, 3, 0.6)
        assert hypotheses_of(found, sentence) == [row[2:] for row in expected[:3]]
