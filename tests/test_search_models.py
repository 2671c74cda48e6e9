"""Searches with every model: the loop of one sentence without a cache, and graphs."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from step_models import (
    LONGEST,
    MODELS,
    PAD,
    arrays,
    assert_found,
    hypotheses_of,
    make_case,
    search_loop,
)

IDS = tf.TensorSpec([None, None], tf.int32)


def cases(*rows):
    """The fixture `case` of models; all but the Transformer as it is by default are slow."""
    fast = ("transformer",), ("transformer", None)
    marks = [() if row in fast else pytest.mark.slow for row in rows]
    return [pytest.param(*row, marks=each) for row, each in zip(rows, marks, strict=True)]


# The loop of greedy search is the same for all models.
WIDTHS = [(name, 4) for name in (*MODELS, "transformer, other choices")]
WIDTHS += [(name, None) for name in ("transformer", "luong", "causal_lm")]


@pytest.fixture(scope="module")
def case(request):
    return make_case(request.param)


@pytest.mark.parametrize("case", cases(*((n,) for n in MODELS)), indirect=True)
def test_the_cached_search_is_the_loop_of_a_model_without_a_cache(case):
    call = tf.function(case.model, input_signature=[{"source_ids": IDS, "target_ids": IDS}])

    def teacher_forced(source, tokens):
        """The logits after the last token, of one source without its padding."""
        source_ids, target_ids = source[source != PAD][None], np.array([tokens], "int32")
        return call({"source_ids": source_ids, "target_ids": target_ids})[0, -1].numpy()

    sources = case.sources[:16]
    limits = np.where(np.arange(16) % 4, 9, 1).astype("int32")
    limits[0] = 0
    expected = [
        search_loop(
            functools.partial(teacher_forced, source), limit, 3, eos_id=case.special["eos_id"]
        )
        for source, limit in zip(sources, limits, strict=True)
    ]
    assert {truncated for rows in expected for *_, truncated in rows} == {True, False}
    assert len({ids for rows in expected for _, _, ids, _ in rows}) >= 6
    found = case.search(tf.constant(sources), limits, 3, n_best=3)
    assert_found(arrays(found), expected)


def assert_same(found, expected, atol=1e-4):
    assert found.lengths.shape == expected.lengths.shape
    for sentence in range(len(expected.lengths)):
        assert hypotheses_of(found, sentence) == hypotheses_of(expected, sentence)
    np.testing.assert_allclose(found.scores, expected.scores, atol=atol)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=atol)


@pytest.mark.parametrize(("case", "beam_size"), cases(*WIDTHS), indirect=["case"])
def test_eager_and_graph_find_the_same(case, beam_size):
    sources = tf.constant(case.sources)
    limits = tf.range(len(case.sources)) % (LONGEST + 1)

    def find(size=beam_size):
        return case.search(sources, limits, size, n_best=size or 1)

    eager = arrays(find())
    if beam_size is None:  # a beam of one is greedy search
        assert_same(arrays(find(1)), eager)
    assert_same(arrays(tf.function(find)()), eager)
