"""Tests of beam search with every model: its cache, its padding, its graphs."""

import numpy as np
import pytest
import tensorflow as tf
from step_models import (
    BOS,
    MODELS,
    NEG_INF,
    NUM_STEPS,
    PAD,
    arrays,
    cases,
    hypotheses_of,
    log_softmax,
    make_case,
    param,
    some_limits,
)

from tf_transformer.decoding import output_limits


@pytest.fixture(scope="module")
def case(request):
    return make_case(request.param)


def assert_same(found, expected, atol=1e-4):
    assert found.lengths.shape == expected.lengths.shape
    for sentence in range(len(expected.lengths)):
        assert hypotheses_of(found, sentence) == hypotheses_of(expected, sentence)
    np.testing.assert_allclose(found.scores, expected.scores, atol=atol)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=atol)


@pytest.fixture(scope="module")
def find(request):
    """A case, and one trace of its search for all sizes."""
    case = make_case(request.param)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([]),
            tf.TensorSpec([], tf.int32),
        ]
    )
    def find(source_ids, beam_size, length_penalty, n_best):
        return case.beam(source_ids, limits_of(source_ids), beam_size, length_penalty, n_best)

    return case, find


def limits_of(source_ids):
    lengths = tf.reduce_sum(tf.cast(source_ids != PAD, tf.int32), axis=1)
    return output_limits(lengths, NUM_STEPS - 1) * tf.cast(lengths != 3, tf.int32)


finders = pytest.mark.parametrize("find", [param(name) for name in MODELS], indirect=True)


@finders
def test_log_probs_are_those_of_teacher_forcing(find):
    case, find = find
    found = arrays(find(case.sources, 4, 0.6, 4))
    exists = found.scores > NEG_INF
    assert (exists & found.truncated).sum() >= 4 and (exists & ~found.truncated).sum() >= 50
    assert len({ids for s in range(len(exists)) for ids, _ in hypotheses_of(found, s)}) >= 20
    ids = np.concatenate([np.full((*exists.shape, 1), BOS), found.ids], axis=2)
    ids = ids.reshape(-1, ids.shape[2]).astype("int32")
    source_ids = np.repeat(case.sources, 4, axis=0)
    logits = case.model({"source_ids": source_ids, "target_ids": ids}).numpy()
    logits = logits.reshape(*exists.shape, *logits.shape[1:])
    for index in zip(*np.nonzero(exists), strict=True):
        end = [] if found.truncated[index] else [case.special["eos_id"]]
        labels = [*found.ids[index][: found.lengths[index]], *end]
        forced = sum(log_softmax(logits[index][t])[label] for t, label in enumerate(labels))
        assert found.log_probs[index] == pytest.approx(forced, abs=1e-4)


@finders
def test_a_translation_depends_neither_on_its_batch_nor_on_padding(find):
    _, find = find
    random = np.random.default_rng(9)
    source_ids = random.integers(4, 11, (1000, 7)).astype("int32")
    source_ids[np.arange(7) >= random.integers(1, 8, 1000)[:, None]] = PAD
    together, differing = arrays(find(source_ids, 4, 0.6, 4)), []
    assert len({tuple(hypotheses_of(together, row)) for row in range(1000)}) >= 30
    assert len(np.unique(together.scores[:, 0].round(4))) > 300

    def compare(rows, padding):
        width = (source_ids[rows] != PAD).sum(axis=1).max()
        batch = np.pad(source_ids[rows, :width], ((0, 0), (0, padding)))
        found = arrays(find(batch, 4, 0.6, 4))
        for index, row in enumerate(rows):
            if hypotheses_of(found, index) != hypotheses_of(together, row):
                differing.append(int(row))
            np.testing.assert_allclose(found.scores[index], together.scores[row], atol=1e-4)

    batches = np.array_split(random.permutation(1000), 12)
    for padding, rows in enumerate(batches):
        compare(rows, padding % 5)
    for row in random.permutation(1000)[:60]:
        compare(np.array([row]), 0)
    print(f"{len(differing)} of 1060 translations differ, by less than 1e-4")
    assert len(differing) <= 10, differing


@cases(*MODELS)
def test_eager_graph_and_compiled_find_the_same(case):
    sources, limits = tf.constant(case.sources), some_limits(len(case.sources))[-1]

    def find(num_steps):
        return case.beam(sources, tf.constant(limits), 4, n_best=4, num_steps=num_steps)

    eager = arrays(find(None))
    assert_same(arrays(find(NUM_STEPS)), eager)
    assert_same(arrays(tf.function(find)(None)), eager)
    assert_same(arrays(tf.function(find)(NUM_STEPS)), eager)
    compiled = arrays(tf.function(find, jit_compile=True)(NUM_STEPS))
    assert compiled.ids.shape == (len(limits), 4, NUM_STEPS)
    assert_same(compiled, eager)
