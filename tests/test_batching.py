"""Tests of the token-budget batches: content, padding and order, with and without noise."""

import functools
import hashlib
import itertools
import json
import types
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lengths import (
    BOS,
    EOS,
    FIRST_ID,
    PAD,
    epoch_of,
    flat,
    make_batches,
    make_text,
    random_lengths,
)

from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.text import ParallelText
from tf_transformer.data.tokens import TokenizedText
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

lengths_lists = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=60)
budgets = st.integers(1, 120)
seeds = st.none() | st.integers(0, 2**31 - 1)


# What is in the batches


def test_a_batch_by_hand():
    ids, offsets = np.array([7, 8, 9, 6, 5, 4, 4]), np.array([0, 3, 4, 5, 7])
    batches = TokenBatches(TokenizedText(ids, offsets), 100, pad_id=99, bos_id=1, eos_id=0)
    inputs, labels = batches.batch(np.array([0, 1]))
    assert inputs["source_ids"].tolist() == [[7, 8, 9, 0], [5, 0, 99, 99]]
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


def test_the_batches_are_those_of_earlier_versions():
    """A resumed run sees the batches that it would have seen; without noise they never change."""
    digest = hashlib.sha256()
    for seed, budget in ((0, 60), (7, 300), (None, 60)):
        batches = make_batches(random_lengths(500, longest=40), budget, seed)
        for epoch in (0, 1, 17):
            digest.update(json.dumps(epoch_of(batches, epoch)).encode())
    assert digest.hexdigest()[:16] == "b3787adfc5e26703"


# Bad input


def test_special_ids_that_would_be_trained_wrong_are_an_error():
    source, target = (types.SimpleNamespace(pad_id=90, eos_id=eos) for eos in (92, 93))
    with pytest.raises(ValueError, match="ids 90 and 93, but the source tokenizer 90 and 92"):
        TokenBatches.from_text(TEXT, source, target)
    with pytest.raises(ValueError, match="pad_id and eos_id are both 0"):
        TokenBatches(make_text([(1, 2)]), 9, pad_id=0, bos_id=BOS, eos_id=0)


@pytest.mark.parametrize("skip", [-1, 4])
def test_a_position_outside_the_epoch_is_an_error(skip):
    with pytest.raises(ValueError, match=f"an epoch has 3 batches; received skip={skip}"):
        make_batches([(1, 2)] * 9, 9).dataset(skip=skip)


def test_no_thread_of_autotuning_delays_the_end_of_training():
    # Deleting an iterator waits for it, up to a minute.
    assert make_batches([(1, 2)] * 9, 9).dataset().options().autotune.enabled is False


# Epochs with a text of their own


pair_lengths = st.tuples(st.integers(0, 15), st.integers(0, 15))


def batches_of_other(plain, other, batch_tokens, seed=0):
    """Batches of sentences of the lengths `plain`, which have the lengths `other` in all epochs."""
    text = make_text(other)
    return TokenBatches(
        make_text(plain), batch_tokens, pad_id=PAD, bos_id=BOS, eos_id=EOS, seed=seed,
        text_of_epoch=lambda epoch: text,
    )  # fmt: skip


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
    batches = batches_of_other(plain, other, batch_tokens, seed)
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
    batches = batches_of_other(plain.tolist(), other.tolist(), 4096)
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


def noisy(source_noise=0.6, **options):
    options = {"batch_tokens": 90, "seed": 1, "source_noise": source_noise, **options}
    return TokenBatches.from_text(TEXT, tokenizer(), tokenizer(), **options)


def stream(batches, **options):
    return [flat(batch[:2]) for batch in batches.dataset(**options)]


def test_the_noisy_batches_are_those_of_earlier_versions():
    made = [[batch] for batch in stream(noisy(), num_epochs=2)]
    digest = hashlib.sha256(json.dumps(made).encode())
    assert digest.hexdigest()[:16] == "ea20647b464db837"


def test_a_stream_begun_in_the_middle_of_an_epoch_goes_on_alike(tmp_path):
    whole = stream(noisy(), num_epochs=3)
    length = len(noisy())
    assert len(whole) == 3 * length and length > 5
    for epoch, skip in ((0, 3), (1, 0), (1, length - 1), (2, length)):
        # New batches, as in a new process; with a cache of the plain ids.
        batches = noisy(cache_dir=tmp_path)
        assert (
            stream(batches, first_epoch=epoch, skip=skip, num_epochs=3 - epoch)
            == (whole[epoch * length + skip :])
        )
    assert len(list(tmp_path.iterdir())) == 1


def test_each_epoch_is_tokenized_once_also_where_an_update_spans_two(monkeypatch):
    calls, with_noise = Counter(), TokenizedText.with_noise

    def counted(self, *arguments):
        calls[arguments[-1]] += 1
        return with_noise(self, *arguments)

    monkeypatch.setattr(TokenizedText, "with_noise", counted)
    batches = noisy()
    assert len(batches) % 4  # so that an update has batches of two epochs
    stream(batches, num_epochs=3, accumulation=4)
    assert calls == {(1, 0, 1): 1, (1, 1, 1): 1, (1, 2, 1): 1}
