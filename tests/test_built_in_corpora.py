"""Tests of the built-in corpora: copy, reverse and phrasebook."""

import hashlib
import itertools
import re

import pytest

from tf_transformer.data.lines import DataError
from tf_transformer.data.phrasebook import phrasebook
from tf_transformer.data.tasks import copy_task, reverse_task

TASKS = pytest.mark.parametrize("task", [copy_task, reverse_task])


def all_sources(corpus):
    return corpus.train.sources + corpus.validation.sources + corpus.test.sources


def test_targets_are_the_sources_copied_or_reversed():
    copy, reverse = copy_task(200, 20, 20), reverse_task(200, 20, 20)
    assert (copy.name, reverse.name) == ("copy", "reverse")
    assert all_sources(copy) == all_sources(reverse)
    for part in ("train", "validation", "test"):
        assert getattr(copy, part).targets == getattr(copy, part).sources
        for source, target in getattr(reverse, part):
            assert target.split(" ") == source.split(" ")[::-1]


@TASKS
def test_sizes_symbols_and_lengths_are_as_asked(task):
    corpus = task(300, 40, 50, num_symbols=3, min_length=4, max_length=6)
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (300, 40, 50)
    sentences = [source.split(" ") for source in all_sources(corpus)]
    assert {symbol for sentence in sentences for symbol in sentence} == {"a", "b", "c"}
    assert {len(sentence) for sentence in sentences} == {4, 5, 6}
    assert task(5, 1, 0).test is None


def test_no_sentence_occurs_twice_and_each_that_exists_can_be_asked_for():
    sources = all_sources(copy_task())
    assert len(sources) == len(set(sources)) == 21_000
    corpus = copy_task(10, 1, 1, num_symbols=2, min_length=2, max_length=3)  # 4 + 8 exist
    expected = {" ".join(s) for n in (2, 3) for s in itertools.product("ab", repeat=n)}
    assert set(all_sources(corpus)) == expected
    words = "13 distinct sentences .* 2 symbols in lengths 2 to 3 make only 12"
    with pytest.raises(DataError, match=words):
        copy_task(11, 1, 1, num_symbols=2, min_length=2, max_length=3)
    with pytest.raises(DataError, match="num_symbols must be from 1 to 26"):
        copy_task(num_symbols=27)


def test_held_out_text_has_short_sentences_like_the_training_text():
    # Few sentences of length 1 and 2 exist, so drawing distinct ones uses them up early: without
    # a shuffle all 12 of them would be in train. With it, 500 of 1,000 sentences are expected to
    # hold 6, and hold none with a probability of about 1 in 4,000 (the seed is fixed).
    corpus = copy_task(500, 1, 499, num_symbols=3, min_length=1, max_length=8)
    assert any(len(source.split(" ")) <= 2 for source in corpus.test.sources)


@TASKS
def test_the_same_seed_makes_the_same_corpus_and_another_seed_another(task):
    assert task(100, 10, 10, seed=7) == task(100, 10, 10, seed=7) != task(100, 10, 10, seed=8)


# Phrasebook


def bare(sentence):
    """The sentence as somebody in a hurry writes it."""
    return sentence.casefold().rstrip(".?!")


def words(sentences):
    return {word for sentence in sentences for word in re.findall(r"\w+", sentence.casefold())}


def test_the_corpus_is_as_it_was_drawn():
    corpus, small = phrasebook(), phrasebook(10, 5, 0)
    parts = (corpus.train, corpus.validation, corpus.test)
    assert corpus.name == "phrasebook" and [len(part) for part in parts] == [20_000, 500, 500]
    digests = [hashlib.sha256(repr(list(part)).encode()).hexdigest()[:16] for part in parts]
    assert digests == ["443de676d5151813", "9d9e5be6e37be830", "b08a52ea1bc2a4cd"]
    assert len(set(all_sources(corpus))) == 21_000
    # A smaller corpus has the first pairs of each part.
    assert list(small.train) == list(corpus.train)[:10]
    assert list(small.validation) == list(corpus.validation)[:5] and small.test is None
    with pytest.raises(DataError, match="20001 pairs are asked for where the phrasebook has 20000"):
        phrasebook(20_001)


def test_no_held_out_sentence_is_in_training_however_it_is_written():
    corpus = phrasebook()
    trained = {bare(sentence) for pair in corpus.train for sentence in pair}
    for pair in (*corpus.validation, *corpus.test):
        assert trained.isdisjoint(map(bare, pair)), pair
    # Nor is what `make demo` and the documents suggest.
    assert bare("Wo kann ich Brot kaufen?") not in trained


def test_what_make_demo_shows_are_new_sentences_of_known_words():
    corpus = phrasebook()
    shown = phrasebook(1, 1, 10).test
    assert shown.sources[0] == "Wo ist der Bahnhof?"
    assert any(source == bare(source) for source in shown.sources), "one in small letters"
    assert words(shown.sources) <= words(corpus.train.sources)
    assert words(shown.targets) <= words(corpus.train.targets)
