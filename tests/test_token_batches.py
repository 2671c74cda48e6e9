"""Tests of the token-budget batches: content, padding and order, with and without noise."""

import functools
import hashlib
import itertools
import json
import threading
import types
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from tf_transformer.data.lines import DataError
from tf_transformer.data.mixture import Mixture
from tf_transformer.data.text import ParallelText
from tf_transformer.data.token_batches import TokenBatches
from tf_transformer.data.tokenized_text import ChangingText, TokenizedText
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

PAD, BOS, EOS, FIRST_ID = 0, 2, 3, 4


def make_text(lengths):
    """Sentences of these (source, target) lengths; each repeats a token id of its own."""
    lengths = np.ravel(lengths).astype(int)
    ids = np.repeat(np.arange(len(lengths), dtype=np.int32) + FIRST_ID, lengths)
    return TokenizedText(ids, np.insert(np.cumsum(lengths), 0, 0))


def make_batches(lengths, batch_tokens, seed=0, other=None, **options):
    """Batches of synthetic sentences; in every epoch these have the lengths `other`, if given."""
    if other is not None:
        options["text_of_epoch"] = lambda epoch: make_text(other)
    ids = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
    return TokenBatches(make_text(lengths), batch_tokens, **ids, seed=seed, **options)


def random_lengths(num_pairs, longest=12):
    return np.random.default_rng(0).integers(0, longest + 1, (num_pairs, 2)).tolist()


def flat(batch):
    """A batch as plain lists, to compare."""
    inputs, labels = batch
    return [np.asarray(a).tolist() for a in (inputs["source_ids"], inputs["target_ids"], labels)]


def epoch_of(batches, epoch):
    return [flat(batches.batch(indices, epoch)) for indices in batches.batch_indices(epoch)]


pair_lengths = st.tuples(st.integers(0, 15), st.integers(0, 15))
lengths_lists = st.lists(pair_lengths, min_size=1, max_size=60)
budgets = st.integers(1, 120)
seeds = st.none() | st.integers(0, 2**31 - 1)


# What is in the batches


@pytest.mark.parametrize(("source_eos_id", "end"), [(None, 0), (99, 99)])
def test_a_batch_by_hand(source_eos_id, end):
    text = TokenizedText(np.array([7, 8, 9, 6, 5, 4, 4]), np.array([0, 3, 4, 5, 7]))
    ends = {"eos_id": 0, "source_eos_id": source_eos_id}
    batches = TokenBatches(text, 100, pad_id=99, bos_id=1, **ends)
    inputs, labels = batches.batch(np.array([0, 1]))
    assert inputs["source_ids"].tolist() == [[7, 8, 9, end], [5, end, 99, 99]]
    assert inputs["target_ids"].tolist() == [[1, 6, 99], [1, 4, 4]]
    assert labels.tolist() == [[6, 0, 99], [4, 4, 0]]
    assert {array.dtype for array in (*inputs.values(), labels)} == {np.dtype(np.int32)}
    # Three of 8 + 6 tokens are padding.
    assert batches.padding_fraction == pytest.approx(3 / 14)
    assert (batches.num_target_tokens, batches.num_too_long) == (5, 0)


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


def test_at_most_a_twentieth_of_the_tokens_is_padding():
    # The less the two lengths of a pair are correlated, the more pairs it takes to fill batches of
    # similar lengths on both sides.
    lengths = realistic_lengths(100_000, 0.2)
    batches = make_batches(lengths, 4096)
    assert batches.padding_fraction <= 0.05
    # Without sorting it would be far more: the distribution is not an easy one.
    longest = (lengths + 1).reshape(-1, 80, 2).max(axis=1)
    assert 1 - (lengths + 1).sum() / (80 * longest.sum()) > 0.4
    # And batches are full, up to the last sentence that did not fit.
    used = [len(batch) * (lengths[batch].max() + 1) for batch in batches.batch_indices(0)]
    assert max(used) <= 4096 and np.mean(used) >= 0.95 * 4096


# Order


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


def padded(*rows):
    """Rows of token ids, padded to the longest, as few columns as will do."""
    longest = max(map(len, rows))
    return [row + [PAD] * (longest - len(row)) for row in rows]


@given(lengths=lengths_lists, batch_tokens=budgets, seed=seeds, epoch=st.integers(0, 1000))
@example(lengths=[(300, 300), (300, 199), (299, 0)] * 2, batch_tokens=700, seed=1, epoch=1)
def test_the_batches_are_those_of_the_definition(lengths, batch_tokens, seed, epoch):
    batches = make_batches(lengths, batch_tokens, seed)
    indices = indices_by_definition(lengths, batch_tokens, seed, epoch)
    assert [batch.tolist() for batch in batches.batch_indices(epoch)] == indices
    num_tokens = num_padding = 0
    for numbers in indices:
        inputs, labels = batches.batch(np.array(numbers), epoch)
        sources, targets = (
            [[FIRST_ID + 2 * n + side] * lengths[n][side] for n in numbers] for side in (0, 1)
        )
        assert inputs["source_ids"].tolist() == padded(*([*ids, EOS] for ids in sources))
        assert inputs["target_ids"].tolist() == padded(*([BOS, *ids] for ids in targets))
        assert labels.tolist() == padded(*([*ids, EOS] for ids in targets))
        for side in (inputs["source_ids"], labels):
            num_tokens += side.size
            num_padding += int((side == PAD).sum())
    assert batches.padding_fraction == pytest.approx(num_padding / num_tokens, abs=1e-12)
    assert batches.num_target_tokens == sum(target + 1 for _, target in lengths)


# Bad input


def test_special_ids_that_would_be_trained_wrong_are_an_error():
    source, target = (types.SimpleNamespace(pad_id=90, eos_id=eos) for eos in (92, 93))
    with pytest.raises(ValueError, match="ids 90 and 93, but the source tokenizer 90 and 92"):
        TokenBatches.from_text(TEXT, source, target)
    with pytest.raises(ValueError, match="pad_id and eos_id are both 0"):
        TokenBatches(make_text([(1, 2)]), 9, pad_id=0, bos_id=BOS, eos_id=0)
    for wrong in ({"source_noise": 2}, {"mark_practice": np.nan}):
        with pytest.raises(ValueError, match="must be from 0 to 1"):
            TokenBatches.from_text(TEXT, target, target, seed=0, **wrong)


def test_a_position_outside_the_epoch_is_an_error():
    batches = make_batches([(1, 2)] * 9, 9)
    for skip in (-1, 4):
        with pytest.raises(ValueError, match=f"an epoch has 3 batches; received skip={skip}"):
            batches.dataset(skip=skip)


# Epochs with a text of their own


@given(
    lengths=st.lists(st.tuples(pair_lengths, pair_lengths), min_size=1, max_size=60),
    batch_tokens=st.integers(1, 120),
    seed=seeds,
    epoch=st.integers(0, 1000),
)
@example([((1, 1), (1, 1)), ((1, 1), (1, 14))], 100, 0, 0)  # one batch, of unequal lengths
@example([((1, 1), (8, 8))] * 7, 2, 0, 0)  # a batch for each sentence
@example([((9, 9), (9, 9))] * 59 + [((9, 19), (9, 999))], 100, 0, 0)  # one huge sentence
@example([((9, 9), (99, 99))] * 59 + [((4, 4), (99, 99))] * 2, 10, 0, 0)  # a batch of two
def test_every_epoch_has_as_many_batches_and_each_pair_once(lengths, batch_tokens, seed, epoch):
    plain, other = zip(*lengths, strict=True)
    batches = make_batches(plain, batch_tokens, seed, other)
    indices = batches.batch_indices(epoch)
    assert len(indices) == len(batches)
    assert all(len(batch) for batch in indices)
    assert sorted(itertools.chain(*(batch.tolist() for batch in indices))) == [*range(len(other))]
    for batch in indices:
        inputs, labels = batches.batch(batch, epoch)
        for number, source, label in zip(batch, inputs["source_ids"], labels, strict=True):
            # Both sides of a pair have the lengths of the epoch, and the ids of their pair.
            source_length, target_length = other[number]
            assert (source == FIRST_ID + 2 * number).sum() == source_length
            assert (label == FIRST_ID + 2 * number + 1).sum() == target_length


def test_longer_sentences_make_batches_of_as_many_more_tokens():
    random = np.random.default_rng(0)
    plain = random.poisson(20, (20_000, 2))
    other = np.round(plain * random.uniform(1.3, 1.5, plain.shape)).astype(int)
    batches = make_batches(plain, 4096, other=other)
    used = [len(batch) * (other[batch].max() + 1) for batch in batches.batch_indices(3)]
    assert len(used) == len(batches)
    # Of nearly equal size, and nothing but the longer text makes them larger.
    assert 1.3 * 4096 < max(used) < 1.5 * 4096
    assert np.mean(used) > 0.95 * max(used)


PAIRS = [(f"der Hund {n} läuft nach Haus", f"the dog {n} runs home") for n in range(90)]
TEXT = ParallelText(*zip(*PAIRS, strict=True))


@functools.cache
def tokenizer():
    return SentencePieceTokenizer.train([*TEXT.sources, *TEXT.targets], 330)


def noisy(text=TEXT, **others):
    options = {"batch_tokens": 90, "seed": 1, "source_noise": 0.6, **others}
    return TokenBatches.from_text(text, tokenizer(), tokenizer(), **options)


def stream(batches, **options):
    return [flat(batch[:2]) for batch in batches.dataset(**options)]


def test_the_noisy_batches_are_those_of_earlier_versions():
    made = [[batch] for batch in stream(noisy(), num_epochs=2)]
    digest = hashlib.sha256(json.dumps(made).encode())
    assert digest.hexdigest()[:16] == "ea20647b464db837"


@pytest.mark.parametrize(
    "kind", ["sorted", "shuffled", "noisy", "packed", "noisy and packed", "mixture"]
)
def test_the_stream_resumes_exactly_at_any_batch(kind):
    def make():
        packing = {"row_length": 32} if "packed" in kind else {}
        if kind == "mixture":
            return noisy(Mixture((TEXT, TEXT), (1.0, 2.0)))
        if "noisy" in kind:
            return noisy(**({"row_length": 128} if packing else {}))
        seed = None if kind == "sorted" else 0
        return make_batches(random_lengths(60), 60, seed, **packing)

    size = len(make())
    assert size > 5
    whole = stream(make(), num_epochs=3)
    assert whole == [batch for epoch in range(3) for batch in epoch_of(make(), epoch)]
    # The first, those about both ends of an epoch, the last, and one after the last.
    for num_batches in {0, 1, size - 1, size, size + 1, 2 * size, 3 * size - 1}:
        epoch, skip = divmod(num_batches, size)
        # New batches, as in a new process.
        rest = make().dataset(first_epoch=epoch, num_epochs=3 - epoch, skip=skip)
        assert int(rest.cardinality()) == 3 * size - num_batches
        assert list(map(flat, rest)) == whole[num_batches:]
    # Without a number of epochs it goes on for ever.
    endless = make().dataset(first_epoch=1, skip=size - 2)
    assert list(map(flat, endless.take(size + 2))) == whole[2 * size - 2 :]


def test_each_epoch_is_tokenized_once(monkeypatch):
    calls, changed = Counter(), ChangingText.__call__

    def counted(self, epoch):
        calls[epoch] += 1
        return changed(self, epoch)

    monkeypatch.setattr(ChangingText, "__call__", counted)
    batches = noisy()
    stream(batches, num_epochs=3)
    assert set(calls.values()) == {1}
    assert {*calls} - {3} == {0, 1, 2}, "and perhaps the next"


@pytest.mark.parametrize("error", [DataError("gone"), OSError(116, "Stale file handle")])
def test_the_next_epoch_is_prepared_while_this_one_is_used(monkeypatch, error):
    """In a thread, whose error is raised when its epoch begins."""
    begun, used, changed = threading.Event(), threading.Event(), ChangingText.__call__

    def slow(self, epoch):
        if epoch == 1:
            begun.set()
            assert used.wait(60)
        if epoch == 2:
            raise error
        return changed(self, epoch)

    monkeypatch.setattr(ChangingText, "__call__", slow)
    batches = noisy()
    first = [batches.batch(indices, 0) for indices in batches.batch_indices(0)]
    assert begun.wait(60)
    used.set()
    second = [batches.batch(indices, 1) for indices in batches.batch_indices(1)]
    assert len(first) == len(second)
    with pytest.raises(tf.errors.OpError):
        stream(batches, num_epochs=3)
    assert batches.failure is error


def test_the_dataset_has_open_shapes_of_int32_and_no_thread_of_autotuning():
    dataset = make_batches([(1, 1)], 10).dataset()
    # Deleting an iterator would wait for the thread, up to a minute.
    assert dataset.options().autotune.enabled is False
    inputs, labels = dataset.element_spec
    for spec in (inputs["source_ids"], inputs["target_ids"], labels):
        assert spec.shape.as_list() == [None, None] and spec.dtype == "int32"


@pytest.mark.parametrize("packing", [{}, {"row_length": 32}])
def test_each_worker_makes_its_rows_of_every_batch(packing):
    """Together they are those of one; with 200 replicas some have no row."""
    batches = make_batches(random_lengths(60), 60, **packing)
    whole = list(batches.dataset(num_epochs=1).as_numpy_iterator())
    for count, worker in ((3, [0, 1]), (3, [2]), (200, [0, 150, 199])):
        made = batches.dataset(num_epochs=1, replicas=worker, num_replicas=count)
        assert int(made.cardinality()) == len(whole) * len(worker)
        made = list(made.as_numpy_iterator())
        assert len(made) == len(whole) * len(worker)
        for number, (inputs, labels) in enumerate(made):
            batch, replica = whole[number // len(worker)], worker[number % len(worker)]
            length = labels.shape[1]
            np.testing.assert_array_equal(labels, batch[1][replica::count, :length])
            assert (batch[1][replica::count, length:] == PAD).all()
            for name, array in inputs.items():
                share = batch[0][name][replica::count]
                np.testing.assert_array_equal(array, share[:, : array.shape[1]])
