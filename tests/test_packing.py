"""Packed rows: every pair is in them once, and a model reads each as if it were alone."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_models import small_config
from test_token_batches import BOS, EOS, FIRST_ID, PAD, make_text, pair_lengths, random_lengths

from tf_transformer.data.packing import PACKED_INPUTS, pack
from tf_transformer.data.token_batches import TokenBatches
from tf_transformer.models.architectures import build_model

ROW = 32
IDS = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}


def packed(lengths, batch_tokens=4 * ROW, seed=0, text=None, **options):
    text = make_text(lengths) if text is None else text
    return TokenBatches(text, batch_tokens, **IDS, seed=seed, row_length=ROW, **options)


def pairs_of(batch):
    """The pairs of a batch: (source, target, label) ids by the definition of packed rows."""
    inputs, labels = batch
    assert {*inputs} == {*PACKED_INPUTS}
    assert {array.shape for array in (*inputs.values(), labels)} == {labels.shape}
    found = []
    for row in range(len(labels)):
        arrays = {name: array[row] for name, array in (*inputs.items(), ("target_labels", labels))}
        for segment in range(1, max(arrays["source_segments"]) + 1):
            pair = []
            for side, name in (("source", "ids"), ("target", "ids"), ("target", "labels")):
                here = arrays[f"{side}_segments"] == segment
                assert arrays[f"{side}_positions"][here].tolist() == [*range(here.sum())]
                assert np.diff(np.flatnonzero(here)).max(initial=1) == 1, "contiguous"
                pair.append(arrays[f"{side}_{name}"][here].tolist())
            found.append(tuple(pair))
        for side, name in (("source", "ids"), ("target", "ids"), ("target", "labels")):
            assert (arrays[f"{side}_{name}"][arrays[f"{side}_segments"] == 0] == PAD).all()
    return found


def expected(number, lengths):
    source, target = ([FIRST_ID + 2 * number + side] * lengths[number][side] for side in (0, 1))
    return [*source, EOS], [BOS, *target], [*target, EOS]


@given(
    lengths=st.lists(pair_lengths, min_size=1, max_size=60),
    batch_tokens=st.integers(1, 200),
    seed=st.none() | st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 1000),
)
@example([(31, 31)] * 3, 1, 0, 1)  # a row for each pair
@example([(31, 0), (0, 31)], 64, 0, 0)
def test_every_epoch_has_each_pair_once(lengths, batch_tokens, seed, epoch):
    batches = packed(lengths, batch_tokens, seed)
    made = [batches.batch(rows, epoch) for rows in batches.batch_indices(epoch)]
    assert len(made) == len(batches)
    assert {labels.shape for _, labels in made} == {(max(1, batch_tokens // ROW), ROW)}
    found = sorted(pair for batch in made for pair in pairs_of(batch))
    assert found == sorted(expected(number, lengths) for number in range(len(lengths)))
    tokens = sum(map(sum, lengths)) + 2 * len(lengths)
    cells = 2 * sum(labels.size for _, labels in made)
    assert batches.padding_fraction == pytest.approx(1 - tokens / cells)


def test_pairs_of_usual_lengths_leave_few_tokens_of_padding():
    random = np.random.default_rng(0)
    targets = np.clip(random.lognormal(3, 0.6, 30_000), 1, 127)
    lengths = np.stack([np.clip(targets * random.lognormal(0, 0.2, 30_000), 1, 127), targets])
    lengths = lengths.astype(int) + 1
    rows = pack(lengths, 256, random.permutation(30_000))
    assert sorted(rows.pairs) == [*range(30_000)]
    of_rows = np.add.reduceat(lengths[:, rows.pairs], rows.bounds[:-1], axis=1)
    assert of_rows.max() <= 256
    assert lengths.sum() / (2 * 256 * len(rows)) > 0.95


def test_longer_text_of_an_epoch_keeps_nearly_all_pairs():
    plain = random_lengths(2000)
    texts = [np.minimum(np.array(plain) + np.random.default_rng(n).integers(0, 3, (2000, 2)), 14)
             for n in range(3)]  # fmt: skip
    batches = packed(plain, text_of_epoch=lambda epoch: make_text(texts[epoch]))
    for epoch in range(3):
        made = [batches.batch(rows, epoch) for rows in batches.batch_indices(epoch)]
        assert len(made) == len(batches)
        found = [pair for batch in made for pair in pairs_of(batch)]
        numbers = [(pair[0][0] - FIRST_ID) // 2 for pair in found if len(pair[0]) > 1]
        assert len({*numbers}) == len(numbers) and len(found) > 1990
        for pair in found[:50]:
            if len(pair[0]) > 1:
                assert pair == expected((pair[0][0] - FIRST_ID) // 2, texts[epoch])


def test_a_side_that_fits_in_no_row_is_an_error():
    with pytest.raises(ValueError, match="row_length=32, but a side has 33 tokens"):
        packed([(32, 3)])


@pytest.mark.parametrize("architecture", ["transformer", "prefix_lm", "causal_lm"])
@pytest.mark.parametrize("name", ["plain", "learned", "no source end"])
def test_a_model_reads_each_pair_as_if_it_were_alone(architecture, name):
    other = {"positions": "learned", "max_positions": 40} if "learned" in name else {}
    random, size = np.random.default_rng(1), 40
    lengths = [(source + 1, target) for source, target in random_lengths(12)]
    text = make_text(lengths)
    text.ids = random.integers(FIRST_ID, size, len(text.ids)).astype("int32")
    sizes = {"source_vocab_size": size, "target_vocab_size": size}
    model = build_model(small_config(architecture, **sizes, pad_id=PAD, **other))
    ends = {"source_eos_id": PAD} if name == "no source end" else {}
    batches = packed(lengths, text=text, **ends)
    seen = 0
    for rows in batches.batch_indices(0):
        inputs, labels = batches.batch(rows)
        logits = np.asarray(model(inputs, training=False))
        for row in range(len(labels)):
            for segment in range(1, inputs["source_segments"][row].max() + 1):
                source, target = (
                    inputs[f"{side}_ids"][row][inputs[f"{side}_segments"][row] == segment]
                    for side in ("source", "target")
                )
                alone = model({"source_ids": source[None], "target_ids": target[None]})[0]
                here = inputs["target_segments"][row] == segment
                np.testing.assert_allclose(logits[row][here], alone, atol=2e-5)
                seen += 1
    assert seen == 12


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("luong", {}),
        ("permutation_lm", {}),
        ("masked_lm", {}),
        ("prefix_lm", {"begin_source": True}),
    ],
)
def test_other_models_refuse_packed_rows(architecture, settings):
    batches = packed(random_lengths(9))
    inputs, _ = batches.batch(batches.batch_indices(0)[0])
    with pytest.raises(ValueError, match="this model takes no packed rows"):
        build_model(small_config(architecture, **settings))(inputs)


def test_a_batch_may_be_of_empty_rows():
    texts = {0: [(9, 9)] * 60, 1: [(1, 1)] * 60}
    batches = packed(texts[0], 1, text_of_epoch=lambda epoch: make_text(texts[epoch]))
    made = [*batches.dataset(num_epochs=2).as_numpy_iterator()]
    assert len(made) == 2 * len(batches)
    assert any(not labels.any() for _, labels in made)
