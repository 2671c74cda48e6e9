"""Padded batches: pairs in the order of their lengths, where batches begin, and their arrays."""

from typing import NamedTuple

import numpy as np

from tf_transformer.data.tokenized_text import TokenizedText


class SpecialIds(NamedTuple):
    """The token ids of padding, of the decoder's begin, and of the ends of targets and sources."""

    pad: int
    bos: int
    eos: int
    source_eos: int


def length_classes(lengths: np.ndarray) -> np.ndarray:
    """Return the sort keys `(pairs,)` of `lengths`, an int array `(2, pairs)`.

    Targets are sorted by length. Source lengths rise within one target length and fall within the
    next, so that neighbours never differ much. If no side is longer than 255 tokens, the keys have
    16 bits, and NumPy sorts them in linear time.
    """
    source_lengths, target_lengths = lengths
    longest = int(source_lengths.max())
    serpentine = np.where(target_lengths % 2, source_lengths, longest - source_lengths)
    num_keys = (int(target_lengths.max()) + 1) * (longest + 1)
    dtype = np.uint16 if num_keys <= 2**16 else np.int64
    return target_lengths.astype(dtype) * dtype(longest + 1) + serpentine.astype(dtype)


def split(lengths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Split sorted sentences into batches of at most `batch_tokens` tokens, padding included.

    Returns:
        int64 array `(batches, 2)`: where each batch starts and stops.
    """
    bounds, start = [], 0
    while start < len(lengths):
        # An upper bound: the number that fits if no sentence is longer than the first.
        most = max(1, batch_tokens // int(lengths[start]))
        longest = np.maximum.accumulate(lengths[start : start + most])
        fits = np.arange(1, len(longest) + 1) * longest <= batch_tokens
        # The product only rises, so those that fit come first. A batch has at least one sentence.
        stop = start + max(1, int(fits.sum()))
        bounds.append((start, stop))
        start = stop
    return np.array(bounds, np.int64)


def split_into(lengths: np.ndarray, count: int) -> np.ndarray:
    """Split sorted sentences like `split`, but into `count` batches of similar token numbers."""
    tokens, step = int(lengths.sum()) // count, 1  # enough without padding
    while (excess := len(bounds := split(lengths, max(1, tokens))) - count) > 0:
        # The number of batches is nearly proportional to 1 / budget; doubling `step` ends the loop.
        tokens += max(step, tokens * excess // count)
        step *= 2
    while missing := count - len(bounds):
        sizes = bounds[:, 1] - bounds[:, 0]
        halved = np.argsort(-sizes, kind="stable")[:missing]
        middles = bounds[halved].sum(axis=1) // 2
        starts = np.sort(np.concatenate([bounds[:, 0], middles[sizes[halved] > 1]]))
        bounds = np.stack([starts, np.append(starts[1:], len(lengths))], axis=1)
    return bounds


def padded_arrays(
    text: TokenizedText, indices: np.ndarray, special: SpecialIds
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the inputs and labels of a batch of pairs; see `TokenBatches.batch`."""
    source_ids, _ = text.padded(2 * indices, special.pad, special.source_eos)
    labels, is_token = text.padded(2 * indices + 1, special.pad, special.eos)
    targets = np.where(is_token, labels, special.pad)[:, :-1]  # without the end ids
    target_ids = np.insert(targets, 0, special.bos, axis=1)
    return {"source_ids": source_ids, "target_ids": target_ids}, labels
