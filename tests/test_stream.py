"""Tests of the dataset: it resumes exactly at any batch, and weights accumulated batches."""

import numpy as np
import pytest
from lengths import PAD, epoch_of, flat, make_batches, random_lengths


def stream_of(dataset):
    return [flat(batch) for batch in dataset]


@pytest.mark.parametrize("seed", [None, 0])
def test_the_stream_resumes_exactly_at_any_batch(seed):
    batches = make_batches(random_lengths(60), 60, seed)
    num_epochs, size = 3, len(batches)
    assert size > 5
    stream = stream_of(batches.dataset(num_epochs=num_epochs))
    assert stream == [batch for epoch in range(num_epochs) for batch in epoch_of(batches, epoch)]
    # The first, those about both ends of an epoch, the last, and one after the last.
    for num_batches in {0, 1, size - 1, size, size + 1, 2 * size, 3 * size - 1}:
        epoch, skip = divmod(num_batches, size)
        rest = batches.dataset(first_epoch=epoch, num_epochs=num_epochs - epoch, skip=skip)
        assert int(rest.cardinality()) == num_epochs * size - num_batches
        assert stream_of(rest) == stream[num_batches:]
    # Without a number of epochs it goes on for ever.
    endless = batches.dataset(first_epoch=1, skip=size - 2)
    assert stream_of(endless.take(size + 2)) == stream[2 * size - 2 :]


@pytest.mark.parametrize(("accumulation", "skip"), [(2, 1), (3, 1), (5, 0)])
def test_weights_make_the_mean_over_batches_the_mean_over_their_tokens(accumulation, skip):
    batches = make_batches(random_lengths(60), 60)
    options = {"num_epochs": 2, "skip": skip}
    dataset = batches.dataset(accumulation=accumulation, **options)
    *stream, weights = zip(*dataset.as_numpy_iterator(), strict=True)
    tokens = np.array([(labels != PAD).sum() for labels in stream[1]])
    assert len({*tokens[:accumulation]}) > 1, "uneven, or the mean of the means would do"
    # Updates span epochs; an incomplete one at the end is dropped.
    num = (2 * len(batches) - skip) // accumulation * accumulation
    assert (len(batches) - skip) % accumulation and num < 2 * len(batches) - skip
    assert int(dataset.cardinality()) == len(tokens) == num
    plain = stream_of(batches.dataset(**options))
    assert [flat(batch) for batch in zip(*stream, strict=True)] == plain[:num]
    # The mean of any losses, weighted batch by batch, is the mean over the tokens of an update.
    losses = np.random.default_rng(0).normal(size=(num // accumulation, accumulation))
    assert all((batch == batch[0]).all() and batch.dtype == "float32" for batch in weights)
    means = (losses * np.reshape([batch[0] for batch in weights], losses.shape)).mean(axis=1)
    expected = np.average(losses, axis=1, weights=tokens.reshape(losses.shape))
    np.testing.assert_allclose(means, expected, atol=1e-6)


def test_the_dataset_has_open_shapes_of_int32():
    inputs, labels = make_batches([(1, 1)], 10).dataset().element_spec
    for spec in (inputs["source_ids"], inputs["target_ids"], labels):
        assert spec.shape.as_list() == [None, None] and spec.dtype == "int32"
