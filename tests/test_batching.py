"""Tests of the token-budget batches: nothing lost, little padding, one order."""

import hashlib
import itertools
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lengths import BOS, EOS, FIRST_ID, PAD, epoch_of, make_batches, random_lengths, shape

from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.parallel import DataError, ParallelText
from tf_transformer.data.tokenized_text import TokenizedText

# A busy machine makes no test fail.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

lengths_lists = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=60)
budgets = st.integers(1, 120)
seeds = st.none() | st.integers(0, 2**31 - 1)


# What is in the batches


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds, epoch=st.integers(0, 1000))
def test_every_sentence_is_in_an_epoch_once_and_no_batch_exceeds_the_budget(
    lengths, batch_tokens, seed, epoch
):
    batches = make_batches(lengths, batch_tokens, seed)
    seen = []
    for source, target, _ in (epoch_batches := epoch_of(batches, epoch)):
        assert len(source) == len(target) >= 1
        positions = len(source) * max(len(source[0]), len(target[0]))
        assert positions <= batch_tokens or len(source) == 1
        for source_row, target_row in zip(source, target, strict=True):
            # Without padding, begin and end: the two sides of a pair stay together.
            pair = [i for i in source_row if i >= FIRST_ID], [i for i in target_row if i != PAD][1:]
            seen.append(pair)
    expected = [
        ([FIRST_ID + 2 * n] * source, [FIRST_ID + 2 * n + 1] * target)
        for n, (source, target) in enumerate(lengths)
    ]
    assert sorted(seen) == sorted(expected)
    assert len(epoch_batches) == len(batches)


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets)
def test_a_batch_is_cut_only_where_one_sentence_more_would_not_fit(lengths, batch_tokens):
    batches = make_batches(lengths, batch_tokens, seed=None)
    rows = batches.rows(0)
    for batch, following in itertools.pairwise(rows):
        longest = max(max(lengths[row]) + 1 for row in (*batch, following[0]))
        assert (len(batch) + 1) * longest > batch_tokens


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds)
def test_the_padding_share_is_that_of_the_batches(lengths, batch_tokens, seed):
    batches = make_batches(lengths, batch_tokens, seed)
    padding = positions = 0
    for source, target, _ in epoch_of(batches, 5):
        for row in (*source, *target):
            padding += row.count(PAD)
            positions += len(row)
    assert batches.padding_share == pytest.approx(padding / positions, abs=1e-12)


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds)
def test_rows_have_begin_end_and_padding_where_they_belong(lengths, batch_tokens, seed):
    batches = make_batches(lengths, batch_tokens, seed)
    for rows in batches.rows(0):
        inputs, labels = batches.batch(rows)
        source, target = inputs["source_ids"], inputs["target_ids"]
        assert inputs.keys() == {"source_ids", "target_ids"}
        assert {source.dtype, target.dtype, labels.dtype} == {np.dtype(np.int32)}
        assert target.shape == labels.shape
        for number, *sides in zip(rows, source, target, labels, strict=True):
            source_row, target_row, label_row = (side.tolist() for side in sides)
            num_source, num_target = lengths[number]
            source_id, target_id = FIRST_ID + 2 * number, FIRST_ID + 2 * number + 1
            spare = len(source_row) - num_source - 1
            assert source_row == [source_id] * num_source + [EOS] + [PAD] * spare
            spare = len(target_row) - num_target - 1
            assert target_row == [BOS] + [target_id] * num_target + [PAD] * spare
            assert label_row == [target_id] * num_target + [EOS] + [PAD] * spare
        # No column is padding alone.
        assert (source[:, -1] != PAD).any() and (target[:, -1] != PAD).any()


def test_a_batch_by_hand():
    text = TokenizedText.of(
        [np.array([7, 8, 9], np.int32), np.array([5], np.int32)],
        [np.array([6], np.int32), np.array([4, 4], np.int32)],
    )
    batches = TokenBatches(text, 100, pad_id=99, bos_id=1, eos_id=0)
    inputs, labels = batches.batch(np.array([0, 1]))
    assert inputs["source_ids"].tolist() == [[7, 8, 9, 0], [5, 0, 99, 99]]
    assert inputs["target_ids"].tolist() == [[1, 6, 99], [1, 4, 4]]
    assert labels.tolist() == [[6, 0, 99], [4, 4, 0]]
    # Three of 8 + 6 positions are padding.
    assert batches.padding_share == pytest.approx(3 / 14)


def realistic_lengths(num_pairs, spread):
    """Sentences of 1 to 127 pieces: a third of them phrases (geometric), the rest prose (Poisson).

    A translation has 1.1 times the pieces, times e to a normal variate of deviation `spread`.
    """
    random = np.random.default_rng(4)
    prose = random.poisson(random.gamma(3.0, 8.0, num_pairs))
    source = np.where(random.random(num_pairs) < 0.3, random.geometric(0.12, num_pairs), prose)
    source = np.clip(source, 1, 127)
    target = np.clip(
        np.round(1.1 * source * np.exp(spread * random.standard_normal(num_pairs))), 1, 127
    )
    return np.stack([source, target.astype(int)], axis=1)


@pytest.mark.parametrize(
    ("num_pairs", "spread"),
    [
        (20_000, 0.05),
        # The looser the lengths of a pair are bound, the more pairs it takes to fill batches of
        # like lengths on both sides.
        (100_000, 0.2),
    ],
)
def test_at_most_a_twentieth_of_the_positions_is_padding(num_pairs, spread):
    lengths = realistic_lengths(num_pairs, spread)
    batches = make_batches(lengths, 4096)
    assert batches.padding_share <= 0.05
    # Without sorting it would be far more: the distribution is not an easy one.
    longest = (lengths + 1).reshape(-1, 80, 2).max(axis=1)
    assert 1 - (lengths + 1).sum() / (80 * longest.sum()) > 0.4
    # And the batches are as large as the budget allows, but for the last sentence that did not fit.
    used = [len(rows) * (lengths[rows].max() + 1) for rows in batches.rows(0)]
    assert max(used) <= 4096 and np.mean(used) >= 0.95 * 4096


# Order


def test_order_is_a_pure_function_of_seed_and_epoch():
    lengths = random_lengths(200)
    one, other = make_batches(lengths, 60, seed=3), make_batches(lengths, 60, seed=3)
    expected = [epoch_of(one, epoch) for epoch in range(4)]
    # In another order, and twice: nothing remembers what was asked before.
    for epoch in (2, 0, 3, 3, 1):
        assert epoch_of(other, epoch) == expected[epoch]


def rows_by_the_book(lengths, batch_tokens, seed, epoch):
    """The order as it is defined, one sentence at a time."""
    sizes = [(source + 1, target + 1) for source, target in lengths]

    def place(row):
        source, target = sizes[row]
        return target, source if target % 2 else -source

    def cut(order):
        batches = [[]]
        for row in order:
            longest = max(max(sizes[r]) for r in [*batches[-1], row])
            if batches[-1] and (len(batches[-1]) + 1) * longest > batch_tokens:
                batches.append([])
            batches[-1].append(row)
        return batches

    if seed is None:
        return cut(sorted(range(len(lengths)), key=place))
    random = np.random.default_rng((seed, epoch))
    # `sorted` keeps the order of sentences in one place.
    batches = cut(sorted(random.permutation(len(lengths)).tolist(), key=place))
    return [batches[number] for number in random.permutation(len(batches))]


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds, epoch=st.integers(0, 1000))
@example(lengths=[(300, 300), (300, 199), (299, 0)] * 2, batch_tokens=700, seed=1, epoch=1)
def test_the_order_is_the_one_by_the_book(lengths, batch_tokens, seed, epoch):
    rows = make_batches(lengths, batch_tokens, seed).rows(epoch)
    assert [batch.tolist() for batch in rows] == rows_by_the_book(
        lengths, batch_tokens, seed, epoch
    )


FINGERPRINT = """
import hashlib, json, sys
import numpy as np
from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.tokenized_text import TokenizedText
lengths = np.random.default_rng(0).integers(0, 13, (200, 2))
sides = [[np.full(n, 5, np.int32) for n in side] for side in lengths.T]
batches = TokenBatches(TokenizedText.of(*sides), 60, pad_id=0, bos_id=2, eos_id=3, seed=3)
rows = [[batch.tolist() for batch in batches.rows(epoch)] for epoch in (0, 7)]
print(hashlib.sha256(json.dumps(rows).encode()).hexdigest())
"""


def test_another_process_has_the_same_order():
    batches = make_batches(random_lengths(200), 60, seed=3)
    rows = [[batch.tolist() for batch in batches.rows(epoch)] for epoch in (0, 7)]
    text = str(rows).replace("'", '"')
    run = subprocess.run(
        [sys.executable, "-c", FINGERPRINT], capture_output=True, text=True, check=True
    )
    assert run.stdout.split()[-1] == hashlib.sha256(text.encode()).hexdigest()


def test_order_differs_between_epochs_and_seeds():
    lengths = random_lengths(200)
    orders = [
        epoch_of(make_batches(lengths, 60, seed=seed), epoch)
        for seed in range(3)
        for epoch in range(3)
    ]
    assert all(a != b for n, a in enumerate(orders) for b in orders[:n])


def test_batches_do_not_come_in_order_of_length():
    batches = make_batches(random_lengths(300), 60)
    lengths = [shape(batch)[2] for batch in epoch_of(batches, 0)]
    rises = np.mean(np.diff(lengths) > 0)
    # Of 70 batches in random order about as many steps fall as rise.
    assert len(lengths) > 50 and 0.3 < rises < 0.7


def test_sentences_of_the_same_lengths_change_their_company():
    batches = make_batches([(4, 4)] * 40, 20)
    companies = [{frozenset(rows.tolist()) for rows in batches.rows(epoch)} for epoch in range(5)]
    assert len({frozenset(company) for company in companies}) == 5


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds)
def test_the_shapes_are_the_same_in_every_epoch(lengths, batch_tokens, seed):
    batches = make_batches(lengths, batch_tokens, seed)
    shapes = [Counter(map(shape, epoch_of(batches, epoch))) for epoch in (0, 1, 17)]
    assert shapes[0] == shapes[1] == shapes[2]


def test_without_a_seed_the_order_is_one_and_by_length():
    batches = make_batches(random_lengths(200), 60, seed=None)
    assert epoch_of(batches, 0) == epoch_of(batches, 1) == epoch_of(batches, 9)
    target_lengths = [shape(batch)[2] for batch in epoch_of(batches, 0)]
    assert target_lengths == sorted(target_lengths)
    assert len(set(target_lengths)) > 5


def test_a_seed_does_not_change_the_shapes():
    lengths = random_lengths(200)
    shapes = [Counter(map(shape, epoch_of(make_batches(lengths, 60, s), 0))) for s in (None, 0, 1)]
    assert shapes[0] == shapes[1] == shapes[2]


# Tokenizing


class Words:
    """A tokenizer that gives each character of a text its code as id."""

    pad_id, eos_id, vocab_size = 90, 92, 2**16

    def encode(self, texts):
        return [list(map(ord, text)) for text in texts]


def test_from_text_tokenizes_and_batches_with_the_tokenizers_ids():
    class Marked(Words):
        bos_id = 91

    text = ParallelText(("abc", "xyz", "abcd", "ab"), ("a", "b", "a", "abc"))
    batches = TokenBatches.from_text(text, Words(), Marked(), max_length=4, batch_tokens=9)
    assert batches.num_too_long == 1
    # Targets of 1 piece before those of 3; 9 positions are two sentences of 4, or one.
    assert epoch_of(batches, 0) == [
        [[[97, 98, 99, 92], [120, 121, 122, 92]], [[91, 97], [91, 98]], [[97, 92], [98, 92]]],
        [[[97, 98, 92]], [[91, 97, 98, 99]], [[97, 98, 99, 92]]],
    ]
    orders = [
        epoch_of(TokenBatches.from_text(text, Words(), Marked(), batch_tokens=200, seed=seed), 0)
        for seed in (None, None)
    ]
    assert orders[0] == orders[1] and len(orders[0]) == 1


def test_tokenizers_with_different_special_ids_are_refused():
    class Foreign(Words):
        bos_id, eos_id = 91, 93

    with pytest.raises(ValueError, match="92 and 90, 93"):
        TokenBatches.from_text(ParallelText(("a",), ("b",)), Words(), Foreign())


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets)
def test_the_target_tokens_are_the_labels_that_are_not_padding(lengths, batch_tokens):
    batches = make_batches(lengths, batch_tokens)
    labels = [row for batch in epoch_of(batches, 0) for row in batch[2]]
    assert batches.num_target_tokens == sum(i != PAD for row in labels for i in row)


def test_nothing_to_batch_is_refused():
    nothing = TokenizedText.build(ParallelText(("abcdef",), ("a",)), Words(), Words(), 3)
    assert nothing.num_too_long == 1
    with pytest.raises(DataError, match="1 had more pieces than max_length allows"):
        TokenBatches(nothing, 10, pad_id=PAD, bos_id=BOS, eos_id=EOS)
