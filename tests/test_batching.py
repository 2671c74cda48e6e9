"""Tests of the token-budget batches: content, padding and order."""

import hashlib
import itertools
import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lengths import (
    BOS,
    EOS,
    FIRST_ID,
    PAD,
    epoch_of,
    make_batches,
    make_text,
    random_lengths,
    shape,
)

from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.parallel import DataError, ParallelText
from tf_transformer.data.tokenized_text import TokenizedText

# No test shall fail because the machine is busy.
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
        tokens = len(source) * max(len(source[0]), len(target[0]))
        assert tokens <= batch_tokens or len(source) == 1
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
def test_a_batch_ends_only_where_one_sentence_more_would_not_fit(lengths, batch_tokens):
    batches = make_batches(lengths, batch_tokens, seed=None)
    for batch, following in itertools.pairwise(batches.batch_indices(0)):
        longest = max(max(lengths[index]) + 1 for index in (*batch, following[0]))
        assert (len(batch) + 1) * longest > batch_tokens


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds)
def test_the_padding_fraction_is_that_of_the_batches(lengths, batch_tokens, seed):
    batches = make_batches(lengths, batch_tokens, seed)
    padding = tokens = 0
    for source, target, _ in epoch_of(batches, 5):
        for row in (*source, *target):
            padding += row.count(PAD)
            tokens += len(row)
    assert batches.padding_fraction == pytest.approx(padding / tokens, abs=1e-12)


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds)
def test_begin_end_and_padding_are_in_the_right_positions(lengths, batch_tokens, seed):
    batches = make_batches(lengths, batch_tokens, seed)
    for indices in batches.batch_indices(0):
        inputs, labels = batches.batch(indices)
        source, target = inputs["source_ids"], inputs["target_ids"]
        assert inputs.keys() == {"source_ids", "target_ids"}
        assert {source.dtype, target.dtype, labels.dtype} == {np.dtype(np.int32)}
        assert target.shape == labels.shape
        for number, *sides in zip(indices, source, target, labels, strict=True):
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
        vocab_size=10,
    )
    batches = TokenBatches(text, 100, pad_id=99, bos_id=1, eos_id=0)
    inputs, labels = batches.batch(np.array([0, 1]))
    assert inputs["source_ids"].tolist() == [[7, 8, 9, 0], [5, 0, 99, 99]]
    assert inputs["target_ids"].tolist() == [[1, 6, 99], [1, 4, 4]]
    assert labels.tolist() == [[6, 0, 99], [4, 4, 0]]
    # Three of 8 + 6 tokens are padding.
    assert batches.padding_fraction == pytest.approx(3 / 14)


def realistic_lengths(num_pairs, spread):
    """Sentences of 1 to 127 tokens: a third of them phrases (geometric), the rest prose (Poisson).

    A translation has 1.1 times the tokens, times e to a normal variate of deviation `spread`.
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
        # The less the two lengths of a pair are correlated, the more pairs it takes to fill
        # batches of similar lengths on both sides.
        (100_000, 0.2),
    ],
)
def test_at_most_a_twentieth_of_the_tokens_is_padding(num_pairs, spread):
    lengths = realistic_lengths(num_pairs, spread)
    batches = make_batches(lengths, 4096)
    assert batches.padding_fraction <= 0.05
    # Without sorting it would be far more: the distribution is not an easy one.
    longest = (lengths + 1).reshape(-1, 80, 2).max(axis=1)
    assert 1 - (lengths + 1).sum() / (80 * longest.sum()) > 0.4
    # And batches are full, up to the last sentence that did not fit.
    used = [len(batch) * (lengths[batch].max() + 1) for batch in batches.batch_indices(0)]
    assert max(used) <= 4096 and np.mean(used) >= 0.95 * 4096


# Order


def test_order_is_a_pure_function_of_seed_and_epoch():
    lengths = random_lengths(200)
    one, other = make_batches(lengths, 60, seed=3), make_batches(lengths, 60, seed=3)
    expected = [epoch_of(one, epoch) for epoch in range(4)]
    # In another order, and twice: no call depends on the calls before.
    for epoch in (2, 0, 3, 3, 1):
        assert epoch_of(other, epoch) == expected[epoch]


def indices_by_definition(lengths, batch_tokens, seed, epoch):
    """The order by its definition, one sentence at a time."""
    sizes = [(source + 1, target + 1) for source, target in lengths]

    def sort_key(index):
        source, target = sizes[index]
        return target, source if target % 2 else -source

    def split(order):
        batches = [[]]
        for index in order:
            longest = max(max(sizes[i]) for i in [*batches[-1], index])
            if batches[-1] and (len(batches[-1]) + 1) * longest > batch_tokens:
                batches.append([])
            batches[-1].append(index)
        return batches

    if seed is None:
        return split(sorted(range(len(lengths)), key=sort_key))
    random = np.random.default_rng((seed, epoch))
    # `sorted` is stable: it keeps the shuffled order of sentences with equal keys.
    batches = split(sorted(random.permutation(len(lengths)).tolist(), key=sort_key))
    return [batches[number] for number in random.permutation(len(batches))]


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds, epoch=st.integers(0, 1000))
@example(lengths=[(300, 300), (300, 199), (299, 0)] * 2, batch_tokens=700, seed=1, epoch=1)
def test_the_order_is_that_of_the_definition(lengths, batch_tokens, seed, epoch):
    indices = make_batches(lengths, batch_tokens, seed).batch_indices(epoch)
    expected = indices_by_definition(lengths, batch_tokens, seed, epoch)
    assert [batch.tolist() for batch in indices] == expected


FINGERPRINT = """
import hashlib, json, sys
import numpy as np
from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.tokenized_text import TokenizedText
lengths = np.random.default_rng(0).integers(0, 13, (200, 2))
sides = [[np.full(n, 5, np.int32) for n in side] for side in lengths.T]
batches = TokenBatches(TokenizedText.of(*sides, 6), 60, pad_id=0, bos_id=2, eos_id=3, seed=3)
indices = [[batch.tolist() for batch in batches.batch_indices(epoch)] for epoch in (0, 7)]
print(hashlib.sha256(json.dumps(indices).encode()).hexdigest())
"""


def test_another_process_has_the_same_order():
    batches = make_batches(random_lengths(200), 60, seed=3)
    indices = [[batch.tolist() for batch in batches.batch_indices(epoch)] for epoch in (0, 7)]
    text = json.dumps(indices)
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


def test_sentences_of_equal_lengths_are_shuffled_among_themselves():
    batches = make_batches([(4, 4)] * 40, 20)
    epochs = [
        frozenset(frozenset(batch.tolist()) for batch in batches.batch_indices(epoch))
        for epoch in range(5)
    ]
    assert len(set(epochs)) == 5


@unhurried
@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds)
def test_the_shapes_are_the_same_in_every_epoch(lengths, batch_tokens, seed):
    batches = make_batches(lengths, batch_tokens, seed)
    shapes = [Counter(map(shape, epoch_of(batches, epoch))) for epoch in (0, 1, 17)]
    assert shapes[0] == shapes[1] == shapes[2]


def test_without_a_seed_the_order_is_always_by_length():
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
    """A tokenizer whose token ids are the code points of the characters."""

    pad_id, eos_id, vocab_size = 90, 92, 2**16

    def encode(self, texts):
        return [list(map(ord, text)) for text in texts]


def test_from_text_tokenizes_and_batches_with_the_tokenizers_ids():
    class Marked(Words):
        bos_id = 91

    text = ParallelText(("abc", "xyz", "abcd", "ab"), ("a", "b", "a", "abc"))
    batches = TokenBatches.from_text(text, Words(), Marked(), max_length=4, batch_tokens=9)
    assert batches.num_too_long == 1
    # Targets of 1 token before those of 3; a batch of 9 tokens has two sentences of 4, or one.
    assert epoch_of(batches, 0) == [
        [[[97, 98, 99, 92], [120, 121, 122, 92]], [[91, 97], [91, 98]], [[97, 92], [98, 92]]],
        [[[97, 98, 92]], [[91, 97, 98, 99]], [[97, 98, 99, 92]]],
    ]
    orders = [
        epoch_of(TokenBatches.from_text(text, Words(), Marked(), batch_tokens=200, seed=seed), 0)
        for seed in (None, None)
    ]
    assert orders[0] == orders[1] and len(orders[0]) == 1


def test_tokenizers_with_different_special_ids_are_an_error():
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


# Bad input


def test_no_pair_to_batch_is_an_error():
    nothing = TokenizedText.build(ParallelText(("abcdef",), ("a",)), Words(), Words(), 3)
    assert nothing.num_too_long == 1
    with pytest.raises(DataError, match="1 had more tokens than max_length allows"):
        TokenBatches(nothing, 10, pad_id=PAD, bos_id=BOS, eos_id=EOS)


def make(**changes):
    settings = {"batch_tokens": 9, "pad_id": PAD, "bos_id": BOS, "eos_id": EOS, "seed": 0}
    return TokenBatches(make_text([(1, 2)] * 9), **settings | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_tokens": 0}, "batch_tokens must be at least 1; received batch_tokens=0"),
        ({"batch_tokens": -5}, "batch_tokens must be at least 1; received batch_tokens=-5"),
        ({"seed": -1}, "seed must be at least 0; received seed=-1"),
        ({"eos_id": PAD}, "pad_id and eos_id are both 0"),
    ],
    ids=["no budget", "negative budget", "negative seed", "end is padding"],
)
def test_a_bad_argument_is_an_error(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"accumulation": 0}, "accumulation must be at least 1; received accumulation=0"),
        ({"num_epochs": 0}, "num_epochs must be at least 1; received num_epochs=0"),
        ({"first_epoch": -1}, "first_epoch must be at least 0; received first_epoch=-1"),
        ({"skip": -1}, "skip must be at least 0; received skip=-1"),
        ({"skip": 4}, "skip must be at most 3, the batches of an epoch; received skip=4"),
    ],
    ids=["accumulation", "num_epochs", "first_epoch", "negative skip", "skip beyond the epoch"],
)
def test_a_bad_argument_of_the_dataset_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        make().dataset(**arguments)


def test_no_thread_of_a_tuner_delays_the_end_of_training():
    # Deleting an iterator waits for it, up to a minute.
    assert make().dataset().options().autotune.enabled is False


def test_an_id_that_a_tokenizer_should_not_give_is_an_error():
    class Small(Words):
        bos_id, vocab_size = 91, 99

    text = ParallelText(("ab", "a"), ("b", "abcd"))
    with pytest.raises(DataError, match="token id 99 is not in the vocabulary of 99 tokens"):
        TokenBatches.from_text(text, Words(), Small())
    # It is in the vocabulary of the other side.
    assert len(TokenBatches.from_text(ParallelText(text.targets, text.sources), Words(), Small()))
