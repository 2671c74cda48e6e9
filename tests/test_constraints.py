"""Searches under constraints: against brute force, and what they promise of any model."""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from step_models import BOS, EOS, SPECIAL, Case, Tables, arrays, every_hypothesis, hypotheses_of

from tf_transformer.decoding.constraints import MarksOnce, NoRepeats
from tf_transformer.tokenizers.marks import MarkIds

WORD = 4
SMALL = MarkIds((5,), (6,), (7,))  # in a vocabulary of 8
MANY = MarkIds((5, 6, 7), (8, 9), (10, 11))  # in a vocabulary of 14
SEEDS = st.integers(0, 2**32 - 1)


class RandomModel:
    """Logits from a table of the last token and the position; it wants marks and ends anywhere."""

    def __init__(self, seed, vocab_size=14):
        random = np.random.default_rng(seed)
        self.table = random.normal(scale=2, size=(40, vocab_size, vocab_size)).astype("float32")

    def start_decoding(self, source_ids):
        return {"source": {}, "target": {}}

    def decode_step(self, token_ids, index, cache):
        return tf.gather(tf.gather(self.table, index), token_ids), cache


def has_marks_once(ids, source, marks):
    """Whether ids have the marks of a source once each, and the pairs in them are nested."""
    found = [i for i in ids if i in marks.all]
    if sorted(found) != sorted(i for i in set(source) if i in marks.all):
        return False
    pairs = zip(marks.opening, marks.closing, strict=True)
    alone = [i for pair in pairs for i in pair if (pair[0] in found) != (pair[1] in found)]
    if [i for i in found if i in alone] != [i for i in source if i in alone]:
        return False
    names = {i: f"({k})" for k, i in enumerate(marks.opening)}
    names |= {i: f"[{k}]" for k, i in enumerate(marks.closing)} | dict.fromkeys(alone, ".")
    text = "".join(names.get(i, "") for i in found)
    while text != (text := re.sub(r"\((\d)\)\[\1\]", "", text)):
        pass
    return not text.strip(".")  # those alone are in no pair


def has_only_marks_after_its_end(ids, source, marks, table):
    """Whether only marks follow where the end is most probable and one is owed."""
    owed, prefix = {i for i in source if i in marks.all}, 0
    for i in ids:
        if owed and table[prefix].argmax() == EOS and i not in marks.all:
            return False
        owed -= {i}
        prefix = prefix * table.shape[1] + i + 1
    return True


@settings(max_examples=6)
@given(seed=SEEDS)
def test_an_exhaustive_beam_finds_the_best_with_all_marks(seed):
    length_penalty = 1.0
    random = np.random.default_rng(seed)
    sources = [[WORD, 5, EOS], [6, WORD, 7], [WORD, EOS, 0], [6, 7, 5], [7, WORD, EOS]]
    limits = np.array([2, 3, 3, 3, 3], "int32")
    tables = random.normal(scale=2, size=(len(sources), sum(8**n for n in range(4)), 8))
    tables = tables.astype("float32")
    case = Case(Tables(), tables, SPECIAL)
    marks = MarksOnce(tf.constant(sources), SMALL, SMALL, EOS)
    beam_size = n_best = 8 * 7**3
    options = (beam_size, length_penalty, n_best)
    found = arrays(case.search(tf.constant(tables), limits, *options, constraints=[marks]))
    for sentence, (source, limit) in enumerate(zip(sources, limits, strict=True)):
        every = every_hypothesis(tables[sentence], limit, length_penalty, EOS)
        expected = {
            (ids, truncated): values
            for (ids, truncated), values in every.items()
            if has_marks_once(ids, source, SMALL)
            and has_only_marks_after_its_end(ids, source, SMALL, tables[sentence])
        }
        hypotheses = [
            (hypothesis, values)
            for hypothesis, *values in zip(
                hypotheses_of(found, sentence), found.log_probs[sentence], found.scores[sentence],
                strict=True,
            )
            if values[1] > -np.inf
        ]  # fmt: skip
        assert {hypothesis for hypothesis, _ in hypotheses} == set(expected)
        for hypothesis, values in hypotheses:
            assert values == pytest.approx(expected[hypothesis], abs=1e-4)


@pytest.mark.parametrize("beam_size", [None, 1, 2, 4])
@settings(max_examples=10)
@given(seed=SEEDS)
def test_every_translation_has_every_mark_once(beam_size, seed):
    random = np.random.default_rng(seed)
    pairs = list(zip(MANY.opening, MANY.closing, strict=True))
    sources = np.full((30, 8), EOS, "int32")
    for row in sources:
        owed = [i for i in MANY.plain if random.random() < 0.5]
        owed += itertools.chain.from_iterable(p for p in pairs if random.random() < 0.5)
        owed = [i for i in owed if random.random() < 0.8]  # some without their partner
        row[: len(owed)] = random.permutation(owed)
    limits = (sources != EOS).sum(axis=1) + random.integers(0, 6, len(sources))
    case = Case(RandomModel(seed), sources, SPECIAL)
    marks = MarksOnce(tf.constant(sources), MANY, MANY, EOS)
    options = {"n_best": beam_size or 1, "constraints": [marks]}
    found = arrays(case.search(tf.constant(sources), limits.astype("int32"), beam_size, **options))
    for sentence, source in enumerate(sources):
        rows = zip(hypotheses_of(found, sentence), found.scores[sentence], strict=True)
        hypotheses = [ids for (ids, _), score in rows if score > -np.inf]
        assert hypotheses and all(has_marks_once(ids, source, MANY) for ids in hypotheses)


@settings(max_examples=10)
@given(seed=SEEDS, size=st.integers(1, 4), beam_size=st.sampled_from([None, 3]))
def test_no_sequence_is_repeated_where_that_is_forbidden(seed, size, beam_size):
    applies = np.arange(8) % 2 == 0
    case = Case(RandomModel(seed), None, SPECIAL)
    limits = np.full(8, 12, "int32")
    constraint = NoRepeats(tf.constant(applies), size)
    options = {"n_best": beam_size or 1, "constraints": [constraint]}
    found = arrays(case.search(tf.zeros([8, 1]), limits, beam_size, **options))
    plain = arrays(case.search(tf.zeros([8, 1]), limits, beam_size, n_best=beam_size or 1))
    for sentence, is_free in enumerate(applies):
        for ids, _ in hypotheses_of(found, sentence):
            ids = [BOS, *ids]
            grams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
            assert not is_free or len(grams) == len({*grams})
        if not is_free:
            assert hypotheses_of(found, sentence) == hypotheses_of(plain, sentence)
