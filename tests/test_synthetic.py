"""Tests of the copy and reverse corpora."""

import itertools

import pytest

from tf_transformer.data.parallel import DataError
from tf_transformer.data.synthetic import copy_task, reverse_task

TASKS = pytest.mark.parametrize("task", [copy_task, reverse_task])


def all_sources(corpus):
    return corpus.train.sources + corpus.validation.sources + corpus.test.sources


def test_targets_equal_sources_in_copy():
    corpus = copy_task(num_train=200, num_validation=20, num_test=20)
    assert corpus.name == "copy"
    for part in (corpus.train, corpus.validation, corpus.test):
        assert part.targets == part.sources


def test_targets_are_reversed_symbol_by_symbol_in_reverse():
    corpus = reverse_task(num_train=200, num_validation=20, num_test=20)
    assert corpus.name == "reverse"
    for part in (corpus.train, corpus.validation, corpus.test):
        for source, target in part:
            assert target.split(" ") == list(reversed(source.split(" ")))


@TASKS
def test_sizes_symbols_and_lengths_are_as_asked(task):
    corpus = task(
        num_train=300, num_validation=40, num_test=50, num_symbols=3, min_length=4, max_length=6
    )
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (300, 40, 50)
    sentences = [source.split(" ") for source in all_sources(corpus)]
    assert {symbol for sentence in sentences for symbol in sentence} == {"a", "b", "c"}
    assert {len(sentence) for sentence in sentences} == {4, 5, 6}


@TASKS
def test_no_sentence_occurs_twice(task):
    sources = all_sources(task())
    assert len(sources) == len(set(sources)) == 21_000


@TASKS
def test_held_out_text_has_short_sentences_like_the_training_text(task):
    # Few sentences of length 1 and 2 exist, so drawing distinct ones uses them up early: without
    # a shuffle all 12 of them would be in train. With it, 500 of 1,000 sentences are expected to
    # hold 6, and hold none with a probability of about 1 in 4,000 (the seed is fixed).
    corpus = task(500, 1, 499, num_symbols=3, min_length=1, max_length=8)
    assert any(len(source.split(" ")) <= 2 for source in corpus.test.sources)


@TASKS
def test_the_same_seed_makes_the_same_corpus_and_another_seed_another(task):
    arguments = {"num_train": 100, "num_validation": 10, "num_test": 10}
    assert task(**arguments, seed=7) == task(**arguments, seed=7)
    assert task(**arguments, seed=7) != task(**arguments, seed=8)


def test_both_tasks_have_the_same_sources():
    assert all_sources(copy_task(50, 5, 5)) == all_sources(reverse_task(50, 5, 5))


@TASKS
def test_every_sentence_that_exists_can_be_asked_for(task):
    corpus = task(10, 1, 1, num_symbols=2, min_length=2, max_length=3)  # 4 + 8 sentences exist.
    expected = {" ".join(s) for n in (2, 3) for s in itertools.product("ab", repeat=n)}
    assert set(all_sources(corpus)) == expected


@TASKS
def test_more_sentences_than_exist_is_an_error_with_both_counts(task):
    with pytest.raises(DataError) as caught:
        task(11, 1, 1, num_symbols=2, min_length=2, max_length=3)
    for part in ("13 distinct sentences", "2 symbols", "lengths 2 to 3", "only 12"):
        assert part in str(caught.value)


@TASKS
def test_no_test_sentences_means_no_test_part(task):
    assert task(5, 1, 0).test is None


@TASKS
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_train", 0),
        ("num_validation", 0),
        ("num_test", -1),
        ("num_symbols", 0),
        ("num_symbols", 27),
        ("min_length", 0),
        ("min_length", 11),
    ],
)
def test_an_argument_out_of_range_is_named(task, name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*, received {value}"):
        task(**{name: value})
