"""Tests of beam search: against greedy search, brute force and a loop in NumPy."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from step_models import (
    BOS,
    EOS,
    NOTHING,
    PAD,
    ROOM,
    SPECIAL,
    STEP_MODELS,
    TRANSFORMERS,
    VOCAB_SIZE,
    Bag,
    Case,
    arrays,
    cases,
    log_softmax,
    make_case,
    num_rows_of,
    of_each,
    rows_of,
    some_limits,
)

from tf_transformer.decoding.beam import _maxima, _top_k_of_many, beam_search, length_penalty

ALPHAS = (0.0, 0.6, 1.0)


@pytest.fixture(scope="module")
def case(request):
    return make_case(request.param)


# Against greedy search


@cases(*STEP_MODELS, *TRANSFORMERS)
@pytest.mark.parametrize("mode", ["growing", "fixed", "compiled"])
def test_a_beam_of_one_is_greedy_search(case, mode):
    num_steps = None if mode == "growing" else ROOM
    greedy = tf.function(
        lambda *args: case.greedy(*args, num_steps=num_steps), jit_compile=mode == "compiled"
    )
    beam = tf.function(
        lambda sources, limits, alpha: case.beam(sources, limits, 1, alpha, 1, num_steps),
        jit_compile=mode == "compiled",
    )
    sources = tf.constant(case.sources)
    for limits in some_limits(len(sources)):
        expected = greedy(sources, tf.constant(limits))
        for alpha in ALPHAS:
            found = arrays(beam(sources, tf.constant(limits), tf.constant(alpha)))
            for name in ("ids", "lengths", "truncated"):
                expected_array = getattr(expected, name).numpy()
                assert getattr(found, name)[:, 0].tolist() == expected_array.tolist(), name
            # Greedy search multiplies fewer rows once sentences have ended, and rounds otherwise.
            np.testing.assert_allclose(found.log_probs[:, 0], expected.log_probs, atol=2e-5)


# Against brute force


class Tables:
    """Logits from a table of all prefixes, another for each sentence."""

    def start_decoding(self, tables, num_steps=None, beam_size=None):
        return {
            "source": {"tables": tables},
            "target": {"prefix": tf.zeros([num_rows_of(tables, beam_size)], tf.int32)},
        }

    def decode_step(self, token_ids, index, cache):
        tables, prefix = of_each(cache["source"]["tables"], token_ids), cache["target"]["prefix"]
        prefix = tf.where(index == 0, 0, prefix * tables.shape[2] + token_ids + 1)
        logits = tf.gather(tables, prefix, batch_dims=1)
        return logits, {"source": cache["source"], "target": {"prefix": prefix}}


def every_hypothesis(table, limit, alpha, eos_id):
    """All that is not impossible: `{ids: (log_prob, score)}`, of those that ended and of cut."""
    ended, cut = {}, {}
    words = [i for i in range(table.shape[1]) if i != eos_id]
    for length in range(limit + 1):
        for ids in itertools.product(words, repeat=length):
            prefix, log_prob = 0, 0.0
            for i in ids:
                log_prob += log_softmax(table[prefix])[i]
                prefix = prefix * table.shape[1] + i + 1
            end = log_prob + log_softmax(table[prefix])[eos_id]
            if end > NOTHING:
                ended[ids] = end, end / ((5 + length + 1) / 6) ** alpha
            elif log_prob > NOTHING and length == limit:
                cut[ids] = log_prob, log_prob / ((5 + length) / 6) ** alpha
    return ended, cut


@given(
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.integers(3, 4),
    alpha=st.sampled_from(ALPHAS),
    n_best=st.sampled_from([1, 2, 5, 60]),
    peak=st.sampled_from([0.3, 1.0, 4.0]),
)
@settings(max_examples=15, deadline=None)
def test_a_beam_as_wide_as_the_space_finds_the_best(seed, vocab_size, alpha, n_best, peak):
    random = np.random.default_rng(seed)
    limits = random.integers(1, 4, 4).astype("int32")
    num_prefixes = sum(vocab_size**n for n in range(4))
    tables = random.normal(scale=peak, size=(4, num_prefixes, vocab_size)).astype("float32")
    pad, bos, eos = 0, 1, 2
    # Where no end is possible hypotheses are cut off.
    tables[..., eos][random.random(tables.shape[:2]) < 0.4] = NOTHING
    tables[..., pad][random.random(tables.shape[:2]) < 0.1] = NOTHING
    case = Case(Tables(), tables, {"pad_id": pad, "bos_id": bos, "eos_id": eos})
    beam_size = vocab_size * (vocab_size - 1) ** 3  # all continuations there can be at once
    n_best = min(n_best, beam_size)
    found = arrays(case.beam(tf.constant(tables), tf.constant(limits), beam_size, alpha, n_best))
    for sentence, limit in enumerate(limits):
        ended, cut = every_hypothesis(tables[sentence], limit, alpha, eos)
        expected = [sorted((s for _, s in part.values()), reverse=True) for part in (ended, cut)]
        expected = [*expected[0], *expected[1], *[NOTHING] * n_best][:n_best]
        np.testing.assert_allclose(found.scores[sentence], expected, atol=1e-5)
        rows = rows_of(found, sentence)
        num = np.isfinite(expected).sum()
        assert rows[num:] == [((), False)] * (n_best - num)
        assert [is_cut for _, is_cut in rows[:num]] == (np.arange(num) >= len(ended)).tolist()
        assert len(set(rows[:num])) == num
        for rank, (ids, is_cut) in enumerate(rows[:num]):
            log_prob, score = (cut if is_cut else ended)[ids]
            assert found.scores[sentence, rank] == pytest.approx(score, abs=1e-5)
            assert found.log_probs[sentence, rank] == pytest.approx(log_prob, abs=1e-5)


# Against a loop that never stops early


def beam_loop(logits_of, limit, beam_size, alpha, eos_id=EOS):
    """One sentence: all its hypotheses as (score, log_prob, ids, cut), best first.

    It stops where K hypotheses are finished, which is part of the algorithm, or at the limit.
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
        penalty = ((5 + index + 1) / 6) ** alpha
        finished += [(p / penalty, p, ids, False) for p, ids in ending]
        finished = sorted(finished, key=lambda f: -f[0])[:beam_size]
        if len(finished) == beam_size:
            return finished
        if index < limit:
            live = [(p, (*ids, token)) for p, ids, token in continuations if token != eos_id]
            live = live[:beam_size]
    penalty, ended = ((5 + limit) / 6) ** alpha, {ids for _, ids in ending}
    return finished + [(p / penalty, p, ids, True) for p, ids in live if ids not in ended]


@cases(*STEP_MODELS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("beam_size", [1, 2, 4, 7])
def test_beam_search_is_the_loop_without_an_early_stop(case, alpha, beam_size):
    limits = np.arange(len(case.sources), dtype="int32") % ROOM
    expected = [
        beam_loop(lambda tokens, s=s: case.model.logits(s, tokens), limit, beam_size, alpha)
        for s, limit in zip(case.sources, limits, strict=True)
    ]
    # All that can happen does.
    assert {cut for rows in expected for *_, cut in rows} == {True, False}
    if beam_size > 1:
        assert any(rows[0][3] != rows[-1][3] for rows in expected)
    for n_best in sorted({1, 2, beam_size} & set(range(beam_size + 1))):
        found = arrays(
            case.beam(tf.constant(case.sources), tf.constant(limits), beam_size, alpha, n_best)
        )
        assert found.ids.shape[:2] == found.scores.shape == (len(limits), n_best)
        assert found.ids.shape[2] == found.lengths.max()
        for sentence, rows in enumerate(expected):
            rows = rows[:n_best]
            assert rows_of(found, sentence)[: len(rows)] == [row[2:] for row in rows]
            none = [NOTHING] * (n_best - len(rows))
            scores, log_probs = [row[0] for row in rows] + none, [row[1] for row in rows] + none
            np.testing.assert_allclose(found.scores[sentence], scores, atol=1e-4)
            np.testing.assert_allclose(found.log_probs[sentence], log_probs, atol=1e-4)


@pytest.mark.parametrize(
    ("limit", "alpha", "n_best", "steps"),
    # Of ten, nine parts end at once: log 0.9 is -0.105, and what goes on is worth at most
    # log 0.0125 / ((5 + limit + 1) / 6) ** alpha.
    [(30, 0.0, 1, 1), (30, 1.0, 1, 1), (243, 1.0, 1, 1), (244, 1.0, 1, 2), (30, 0.0, 2, 2)],
)
def test_the_search_stops_as_soon_as_nothing_better_can_come(limit, alpha, n_best, steps):
    probabilities = np.where(np.arange(VOCAB_SIZE) == EOS, 0.9, 0.1 / (VOCAB_SIZE - 1))
    calls = []

    def step(token_ids, index, cache):
        calls.append(int(index))
        return tf.tile(tf.constant(np.log(probabilities)[None], tf.float32), [16, 1]), cache

    cache = {"source": {}, "target": {}}
    beam_search(
        step, cache, tf.fill([4], limit), beam_size=4, alpha=alpha, n_best=n_best, **SPECIAL
    )
    assert calls == list(range(steps))


# What finished is finished


@cases(*STEP_MODELS, "norm_first")
@pytest.mark.parametrize("alpha", ALPHAS)
def test_scores_of_finished_hypotheses_never_change(case, alpha):
    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def find(limit):
        sources = tf.constant(case.sources)
        return case.beam(sources, tf.fill([len(sources)], limit), 4, alpha, n_best=4)

    before = [{} for _ in case.sources]
    kept = 0
    for limit in range(ROOM):
        found = arrays(find(limit))
        exists = found.scores > NOTHING
        ended = exists & ~found.truncated
        # Those that ended stand before the others, and each part is sorted.
        assert (ended[:, 1:] <= ended[:, :-1]).all() and (exists[:, 1:] <= exists[:, :-1]).all()
        for part in (ended, exists & ~ended):
            both = part[:, 1:] & part[:, :-1]
            assert (found.scores[:, :-1] >= found.scores[:, 1:])[both].all()
        penalty = ((5.0 + found.lengths + ended) / 6.0) ** alpha
        np.testing.assert_allclose(
            found.scores[exists], (found.log_probs / penalty)[exists], rtol=1e-5
        )
        for sentence, old in enumerate(before):
            now = {
                ids: (found.log_probs[sentence, rank], found.scores[sentence, rank])
                for rank, (ids, cut) in enumerate(rows_of(found, sentence))
                if ended[sentence, rank]
            }
            assert len(now) >= len(old)
            for ids, values in old.items():
                # Only K that are as good can have driven it out.
                assert now.get(ids) == values or (ids not in now and len(now) == 4)
                if ids not in now:
                    assert min(score for _, score in now.values()) >= values[1]
                kept += ids in now
            before[sentence] = now
    assert kept > 100


def test_of_equal_scores_the_older_comes_first():
    """Half of the probability ends at once, the other half certainly one step later."""
    nothing, half = np.full(VOCAB_SIZE, NOTHING, "float32"), np.log(0.5)
    rows = [nothing.copy(), nothing.copy()]
    rows[0][[EOS, 5]], rows[1][EOS] = 0.0, 0.0

    def step(token_ids, index, cache):
        return tf.where((token_ids == BOS)[:, None], *rows), cache

    cache = {"source": {}, "target": {}}
    found = arrays(
        beam_search(step, cache, tf.constant([4]), beam_size=2, alpha=0.0, n_best=2, **SPECIAL)
    )
    assert found.scores.tolist() == [[np.float32(half)] * 2]
    assert rows_of(found, 0) == [((), False), ((5,), False)]


def test_sentences_that_are_done_leave_the_batch():
    lengths, sizes = (1, 9, 1, 5, 0, 1, 7, 9), []
    wanted = tf.constant([[4] * n + [EOS] * (12 - n) for n in lengths])

    def step(token_ids, index, cache):
        wanted = cache["source"]["wanted"]
        assert len(token_ids) == 2 * len(wanted)
        sizes.append(len(wanted))
        # So sure that nothing else is worth a further step.
        logits = tf.one_hot(wanted[:, index], VOCAB_SIZE, on_value=20.0)
        return tf.repeat(logits, 2, axis=0), cache

    cache = {"source": {"wanted": wanted}, "target": {}}
    found = beam_search(step, cache, tf.fill([8], 11), beam_size=2, alpha=0.0, **SPECIAL)
    assert sizes == [8, 8, 4, 4, 4, 4, 3, 3, 2, 2]
    assert found.lengths[:, 0].numpy().tolist() == list(lengths)


@pytest.mark.parametrize(("pad_id", "bos_id", "eos_id"), [(0, 2, 3), (8, 1, 0), (3, 0, 8)])
@pytest.mark.parametrize("num_steps", [None, 5])
def test_special_ids_are_those_that_are_told(pad_id, bos_id, eos_id, num_steps):
    wanted = tf.constant([[5, 6, eos_id, 5], [eos_id, 5, 5, 5]])
    first = []

    def step(token_ids, index, cache):
        first.append(token_ids.numpy().tolist())
        logits = tf.one_hot(cache["source"]["wanted"][:, index], VOCAB_SIZE, on_value=20.0)
        # Of what is not wanted, the end last.
        return tf.repeat(logits - tf.one_hot(eos_id, VOCAB_SIZE), 2, axis=0), cache

    special = {"pad_id": pad_id, "bos_id": bos_id, "eos_id": eos_id}
    cache = {"source": {"wanted": wanted}, "target": {}}
    found = beam_search(
        step, cache, tf.constant([3, 3]), beam_size=2, num_steps=num_steps, **special
    )
    assert first[0] == [bos_id] * 4
    padding = [pad_id] * (found.ids.shape[2] - 2)
    assert len(padding) == (0 if num_steps is None else 3)
    assert found.ids[:, 0].numpy().tolist() == [[5, 6, *padding], [pad_id, pad_id, *padding]]
    assert found.lengths.numpy().tolist() == [[2], [0]]


# The cache


def test_only_the_target_is_re_ordered():
    model, pasts = Bag(), []

    def step(token_ids, index, cache):
        past, history = cache["target"]["ids"], cache["history"]["ids"]
        # Written by the sentence, hypotheses side by side, and found as it was left.
        live = cache["source"]["places"].numpy()
        seen = np.stack(pasts, axis=2)[live] if pasts else np.zeros([12, 3, 0])
        assert history.numpy().tolist() == seen.tolist()
        pasts.append(np.full([12, 3], PAD))
        pasts[-1][live] = tf.reshape(token_ids, [-1, 3])
        history = tf.concat([history, pasts[-1][live][..., None]], axis=2)
        past = tf.concat([past, token_ids[:, None]], axis=1)
        # A model without any memory but the hypotheses' own past.
        embedded = tf.reduce_sum(tf.gather(model.embeddings, past), axis=1)
        bag = of_each(cache["source"]["bag"], token_ids)
        logits = tf.tanh(bag + embedded) @ model.output + model.bias
        moved = {"target": {"ids": past}, "history": {"ids": history}}
        return logits, {"source": cache["source"], **moved}

    sources = model.sources(12)
    cache = {
        "source": {"bag": tf.constant(sources), "places": tf.range(12)},
        "target": {"ids": tf.zeros([36, 0], tf.int32)},
        "history": {"ids": tf.zeros([12, 3, 0], tf.int32)},
    }
    found = arrays(beam_search(step, cache, tf.fill([12], 6), beam_size=3, n_best=3, **SPECIAL))
    assert len(pasts) == 7
    for sentence, source in enumerate(sources):
        expected = beam_loop(lambda tokens, s=source: model.logits(s, tokens), 6, 3, 0.6)
        assert rows_of(found, sentence) == [row[2:] for row in expected[:3]]


# Parts


def test_known_length_penalties():
    assert length_penalty(tf.range(14), 0.0).numpy().tolist() == [1.0] * 14
    assert length_penalty(tf.constant([1, 7, 13]), 1.0).numpy().tolist() == [1.0, 2.0, 3.0]
    for alpha in (0.2, 0.6, 1.0):
        assert float(length_penalty(1, alpha)) == 1.0
    assert float(length_penalty(19, 0.5)) == 2.0
    assert float(length_penalty(19, tf.constant(0.6))) == pytest.approx(4**0.6)


@given(
    size=st.sampled_from([8000, 7999, 512, 1000, 37000, 7993, 9]),
    top_k=st.sampled_from([tf.math.top_k, _maxima]),
    k=st.integers(1, 20),
    spread=st.sampled_from([0.1, 2.0, 4.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_the_quick_top_k_is_the_original(size, top_k, k, spread, seed):
    k = min(k, size)
    # The larger, the rarer: equal values are then in blocks with unequal maxima too.
    values = np.floor(np.random.default_rng(seed).normal(scale=spread, size=(3, size)))
    values = values.astype("float32")
    values[2, seed % size :] = NOTHING
    found = _top_k_of_many(tf.constant(values), k, top_k)
    expected = tf.math.top_k(values, k)
    assert found[0].numpy().tolist() == expected[0].numpy().tolist()
    assert found[1].numpy().tolist() == expected[1].numpy().tolist()
