"""Tests of the phrasebook corpus."""

import hashlib
import itertools
import re

import pytest

from tf_transformer.data.phrasebook import phrasebook
from tf_transformer.data.text import DataError


@pytest.fixture(scope="module")
def corpus():
    return phrasebook()


def test_the_corpus_is_the_one_that_the_grammar_gave(corpus):
    parts = (corpus.train, corpus.validation, corpus.test)
    assert corpus.name == "phrasebook" and [len(part) for part in parts] == [20_000, 500, 500]
    digests = [hashlib.sha256(repr(list(part)).encode()).hexdigest()[:16] for part in parts]
    assert digests == ["32f1bf165191c267", "e03d95c20bd08cd6", "1680788b7c0a59d2"]
    for side in zip(*itertools.chain(*parts), strict=True):
        assert len(side) == len(set(side)) == 21_000


def test_a_smaller_corpus_has_the_first_pairs_of_each_part(corpus):
    small = phrasebook(10, 5, 0)
    assert list(small.train) == list(corpus.train)[:10]
    assert list(small.validation) == list(corpus.validation)[:5] and small.test is None
    with pytest.raises(DataError, match="20001 pairs are asked for where the phrasebook has 20000"):
        phrasebook(20_001)


def test_every_held_out_word_occurs_often_in_training(corpus):
    for number in (0, 1):
        seen = {}
        for pair in corpus.train:
            for word in re.findall(r"[\w'-]+", pair[number].lower()):
                seen[word] = seen.get(word, 0) + 1
        for pair in [*corpus.validation, *corpus.test]:
            for word in re.findall(r"[\w'-]+", pair[number].lower()):
                assert seen.get(word, 0) >= 10, word
