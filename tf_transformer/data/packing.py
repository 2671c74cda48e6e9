"""Packed rows: several sentence pairs in a row of fixed length (Raffel et al. 2020, section 3.1.1).

All batches have one shape, and little padding. The segment ids tell a model which tokens belong
together: 1, 2, … for the pairs of a row, 0 for padding.
"""

from typing import NamedTuple

import numpy as np

from tf_transformer.data.padding import SpecialIds
from tf_transformer.data.tokenized_text import TokenizedText

PACKED_INPUTS = tuple(
    f"{side}_{kind}" for side in ("source", "target") for kind in ("ids", "segments", "positions")
)
_OPEN_ROWS = 16  # rows that are filled at the same time
_PAIRS_OF_STREAM = 2_000
_MOST_STREAMS = 4_096


class PackedRows(NamedTuple):
    """Rows of sentence pairs.

    Attributes:
        pairs: Indices of the pairs, row by row, int `(pairs,)`.
        bounds: Row r has `pairs[bounds[r] : bounds[r + 1]]`, int `(rows + 1,)`.
    """

    pairs: np.ndarray
    bounds: np.ndarray

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.bounds) - 1

    def of_row(self, row: int) -> np.ndarray:
        """Return the pairs of a row; no pair of a row beyond the last one."""
        return self.pairs[slice(*self.bounds[row : row + 2])] if row < len(self) else self.pairs[:0]


def pack(lengths: np.ndarray, row_length: int, order: np.ndarray) -> PackedRows:
    """Pack pairs so that neither side of a row is longer than `row_length`.

    A pair goes to the fullest of some open rows in which it fits; where it fits in none, a new row
    takes the place of the fullest one. Many streams of pairs are packed at once, which is what
    makes NumPy fast.

    Args:
        lengths: int `(2, pairs)`, the lengths of the sources and of the targets, begin or end
            included, each at most `row_length`.
        row_length: Number of tokens in a row.
        order: Indices of the pairs to pack, in a random order.
    """
    number = len(order)
    streams = max(1, min(_MOST_STREAMS, number // _PAIRS_OF_STREAM))
    steps = -(-number // streams)
    needed = np.zeros((2, steps * streams), np.int32)
    needed[:, :number] = lengths[:, order]
    needed = needed.reshape(2, steps, streams)
    room = np.full((2, _OPEN_ROWS, streams), row_length, np.int32)
    ids = np.arange(_OPEN_ROWS * streams).reshape(_OPEN_ROWS, streams)
    next_id, stream, rows = ids.size, np.arange(streams), np.zeros((steps, streams), np.int64)
    for step in range(steps):
        need = needed[:, step]
        left = room[0] + room[1]
        fits = (room[0] >= need[0]) & (room[1] >= need[1])
        slot = np.where(fits, left, 2 * row_length + 1).argmin(axis=0)
        is_full = ~fits[slot, stream]
        if is_full.any():
            full = stream[is_full]
            slot[full] = left[:, full].argmin(axis=0)
            room[:, slot[full], full] = row_length
            ids[slot[full], full] = np.arange(next_id, next_id + len(full))
            next_id += len(full)
        room[:, slot, stream] -= need
        rows[step] = ids[slot, stream]
    rows = rows.reshape(-1)[:number]
    by_row = np.argsort(rows, kind="stable")
    starts = np.flatnonzero(np.diff(rows[by_row], prepend=-1))
    return PackedRows(order[by_row], np.append(starts, number))


def packed_arrays(
    text: TokenizedText, rows: list[np.ndarray], row_length: int, special: SpecialIds
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the inputs and labels of a batch, each an int32 array `(rows, row_length)`.

    `rows` has the pairs of each row. The inputs have `source_ids`, `target_ids`, and for both sides
    `…_segments`, and `…_positions`, which begin again in each segment.
    """
    pairs = np.concatenate([np.empty(0, int), *rows])  # a replica may have no row
    sizes = np.array([len(row) for row in rows], int)
    row_of_pair = np.repeat(np.arange(len(rows)), sizes)
    first_of_row = np.repeat(np.cumsum(sizes) - sizes, sizes)
    segment_of_pair = np.arange(len(pairs)) - first_of_row + 1
    shape, arrays = (len(rows), row_length), {}
    for side, name in enumerate(("source", "target")):
        starts = text.offsets[2 * pairs + side]
        lengths = text.offsets[2 * pairs + side + 1] - starts + 1
        before = np.cumsum(lengths) - lengths
        offsets = row_of_pair * row_length + before - before[first_of_row]
        position = np.arange(lengths.sum()) - np.repeat(before, lengths)
        place = np.repeat(offsets, lengths) + position
        is_end = position == np.repeat(lengths - 1, lengths)
        tokens = np.full(len(place), special.eos if side else special.source_eos, np.int32)
        tokens[~is_end] = text.ids[(np.repeat(starts, lengths) + position)[~is_end]]

        def spread(values: np.ndarray, empty: int, place: np.ndarray = place) -> np.ndarray:
            whole = np.full(shape[0] * shape[1], empty, np.int32)
            whole[place] = values
            return whole.reshape(shape)

        arrays[f"{name}_ids"] = spread(tokens, special.pad)
        arrays[f"{name}_segments"] = spread(np.repeat(segment_of_pair, lengths), 0)
        arrays[f"{name}_positions"] = spread(position, 0)
    # A source may have no end, which the padding in its place must not become.
    arrays["source_segments"][arrays["source_ids"] == special.pad] = 0
    labels = arrays["target_ids"]
    begun = np.insert(labels, 0, special.bos, axis=1)[:, :-1]
    begun[arrays["target_positions"] == 0] = special.bos
    arrays["target_ids"] = np.where(arrays["target_segments"], begun, special.pad).astype(np.int32)
    return arrays, labels
