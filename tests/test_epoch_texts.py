"""Tests of batches whose ids differ between epochs: as many, each pair once, resumable."""

import functools
import itertools
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lengths import BOS, EOS, FIRST_ID, PAD, flat, make_text

from tf_transformer.data.augmentation import Augmentation
from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.parallel import ParallelText
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

# No test shall fail because the machine is busy.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

pair_lengths = st.tuples(st.integers(0, 15), st.integers(0, 15))


def make_batches(plain, other, batch_tokens, seed=0):
    """Batches of sentences of the lengths `plain`, which have the lengths `other` in all epochs."""
    text = make_text(other)
    return TokenBatches(
        make_text(plain), batch_tokens, pad_id=PAD, bos_id=BOS, eos_id=EOS, seed=seed,
        text_of_epoch=lambda epoch: text,
    )  # fmt: skip


@unhurried
@given(
    lengths=st.lists(st.tuples(pair_lengths, pair_lengths), min_size=1, max_size=60),
    batch_tokens=st.integers(1, 120),
    seed=st.none() | st.integers(0, 2**31),
    epoch=st.integers(0, 1000),
)
@example([((1, 1), (1, 1)), ((1, 1), (1, 14))], 100, 0, 0)  # one batch, of unequal lengths
@example([((1, 1), (8, 8))] * 7, 2, 0, 0)  # a batch for each sentence
@example([((1, 1), (8, 8))] * 7, 4, 0, 0)
def test_every_epoch_has_as_many_batches_and_each_pair_once(lengths, batch_tokens, seed, epoch):
    plain, other = zip(*lengths, strict=True)
    batches = make_batches(plain, other, batch_tokens, seed)
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


@pytest.mark.parametrize(
    ("plain", "other", "batch_tokens", "num_batches"),
    [
        ([(4, 4)] * 100, [(9, 9)] * 100, 50, 10),  # all equal
        ([(4, 4)] * 100, [(2, 2)] * 100, 50, 10),
        ([(4, 4)] * 100, [(9, 9)] * 100, 5, 100),  # one sentence a batch
        ([(9, 9)] * 100, [(999, 999)] * 100, 10_000, 1),  # one batch
        ([(9, 9)] * 99 + [(9, 19)], [(9, 9)] * 99 + [(9, 9_999)], 4000, 1),
        ([(9, 9)] * 99 + [(9, 19)], [(9, 9)] * 99 + [(9, 9_999)], 100, 11),  # one huge sentence
        # As many batches as sentences but one: two of equal length must be put together.
        ([(9, 9)] * 99 + [(4, 4)] * 2, [(999, 999)] * 101, 10, 100),
    ],
    ids=["longer", "shorter", "single", "one batch", "one batch, huge", "huge", "all but one"],
)  # fmt: skip
def test_awkward_lengths_make_as_many_batches(plain, other, batch_tokens, num_batches):
    batches = make_batches(plain, other, batch_tokens)
    sizes = [len(batch) for batch in batches.batch_indices(0)]
    assert len(sizes) == len(batches) == num_batches
    assert sum(sizes) == len(plain) and min(sizes) >= 1


def test_longer_sentences_make_batches_of_as_many_more_tokens():
    random = np.random.default_rng(0)
    plain = random.poisson(20, (20_000, 2))
    other = np.round(plain * random.uniform(1.3, 1.5, plain.shape)).astype(int)
    batches = make_batches(plain.tolist(), other.tolist(), 4096)
    used = [len(batch) * (other[batch].max() + 1) for batch in batches.batch_indices(3)]
    assert len(used) == len(batches)
    # Of equal size but for the last, and nothing but the longer text makes them larger.
    assert 1.3 * 4096 < max(used) < 1.5 * 4096
    assert np.mean(used) > 0.95 * max(used)


def test_each_epoch_has_its_own_order_by_its_lengths():
    lengths = np.random.default_rng(0).integers(1, 30, (300, 2)).tolist()
    batches = make_batches(lengths, lengths[::-1], 100)
    indices = [batches.batch_indices(epoch) for epoch in (0, 1, 0)]
    plain = [[batch.tolist() for batch in epoch] for epoch in indices]
    assert plain[0] == plain[2] != plain[1]
    # Lengths in a batch are similar, by those of the epoch.
    spread = [np.ptp([lengths[::-1][number][1] for number in batch]) for batch in indices[0]]
    assert np.mean(spread) < 4


def test_an_epoch_of_other_pairs_is_an_error():
    batches = make_batches([(1, 1)] * 5, [(1, 1)] * 4, 10)
    with pytest.raises(ValueError, match="must have the same 5 pairs; text_of_epoch gave 4 for e"):
        batches.batch_indices(0)


# With an augmentation

PAIRS = [(f"der Hund {n} läuft nach Haus", f"the dog {n} runs home") for n in range(90)]
TEXT = ParallelText(*zip(*PAIRS, strict=True))


@functools.cache
def tokenizer():
    return SentencePieceTokenizer.train([*TEXT.sources, *TEXT.targets], 330)


def augmented(augmentation=None, **options):
    if augmentation is None:
        augmentation = Augmentation(source_noise=0.6)
    options = {"batch_tokens": 90, "seed": 1, "augmentation": augmentation, **options}
    return TokenBatches.from_text(TEXT, tokenizer(), tokenizer(), **options)


def stream(batches, **options):
    return [
        (flat((inputs, labels)), *(weight.numpy().tolist() for weight in rest))
        for inputs, labels, *rest in batches.dataset(**options)
    ]


def test_a_stream_begun_in_the_middle_of_an_epoch_goes_on_alike():
    whole = stream(augmented(), num_epochs=3)
    length = len(augmented())
    assert len(whole) == 3 * length and length > 5
    for epoch, skip in ((0, 3), (1, 0), (1, length - 1), (2, length)):
        # New batches, as in a new process.
        rest = stream(augmented(), first_epoch=epoch, skip=skip, num_epochs=3 - epoch)
        assert rest == whole[epoch * length + skip :]


def test_epochs_hold_the_same_sentences_with_other_noise():
    batches, seen = augmented(Augmentation(source_noise=1.0)), []
    for epoch in range(2):
        ids = [
            tuple(i for i in row if i not in (PAD, EOS))
            for batch in stream(batches, first_epoch=epoch, num_epochs=1)
            for row in batch[0][0]
        ]
        texts = tokenizer().decode(ids)
        assert sorted(re.findall(r"\d+", " ".join(texts))) == sorted(map(str, range(90)))
        seen.append(set(ids))
    assert len(seen[0] & seen[1]) < len(TEXT) / 2
    plain = {tuple(ids) for ids in tokenizer().encode(TEXT.sources)}
    assert len(seen[0] & plain) < len(TEXT) / 2


@pytest.mark.parametrize("accumulation", [2, 3])
def test_the_weights_of_an_update_are_the_fractions_of_its_tokens(accumulation):
    batches = augmented()
    made = stream(batches, num_epochs=3, accumulation=accumulation)
    assert len(made) == 3 * len(batches) // accumulation * accumulation
    # The batches are those without accumulation.
    assert [batch for batch, _ in made] == [batch for (batch,) in stream(batches, num_epochs=3)][
        : len(made)
    ]
    for start in range(0, len(made), accumulation):
        update = made[start : start + accumulation]
        tokens = [sum(i != PAD for row in labels for i in row) for (*_, labels), _ in update]
        for ((*_, labels), weights), count in zip(update, tokens, strict=True):
            assert len(weights) == len(labels) and len(set(weights)) == 1
            assert weights[0] == pytest.approx(accumulation * count / sum(tokens))


def test_each_epoch_is_tokenized_once_also_where_an_update_spans_two(monkeypatch):
    calls = Counter()
    tokenize = Augmentation.tokenize

    def counted(self, *arguments):
        calls[arguments[-1]] += 1
        return tokenize(self, *arguments)

    monkeypatch.setattr(Augmentation, "tokenize", counted)
    batches = augmented()
    assert len(batches) % 4  # so that an update has batches of two epochs
    stream(batches, num_epochs=3, accumulation=4)
    assert calls == {0: 1, 1: 1, 2: 1}


def test_the_cache_holds_the_plain_ids_and_changes_nothing(tmp_path):
    expected = stream(augmented(), num_epochs=2)
    for _ in range(2):
        assert stream(augmented(cache_dir=tmp_path), num_epochs=2) == expected
    assert len(list(tmp_path.iterdir())) == 1
    # Runs without augmentation share it.
    plain = TokenBatches.from_text(TEXT, tokenizer(), tokenizer(), cache_dir=tmp_path)
    assert isinstance(plain._text.ids.base, np.memmap) and len(list(tmp_path.iterdir())) == 1


def test_an_augmentation_that_changes_nothing_gives_the_batches_without_one():
    options = {"batch_tokens": 90, "seed": 1}
    without = TokenBatches.from_text(TEXT, tokenizer(), tokenizer(), **options)
    assert stream(augmented(Augmentation()), num_epochs=2) == stream(without, num_epochs=2)
