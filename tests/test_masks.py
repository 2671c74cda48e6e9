"""Tests of the attention masks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_transformer.layers.masks import (
    causal_mask,
    local_mask,
    padding_mask,
    permutation_mask,
    prefix_mask,
)


def as_bits(mask):
    """`["100", "110", …]`, one string a query."""
    return ["".join(str(int(allowed)) for allowed in row) for row in np.asarray(mask)]


@pytest.mark.parametrize("pad_id", [0, 7])
def test_padding_mask_is_true_at_real_tokens_of_each_row(pad_id):
    ids = np.array([[4, 5, pad_id], [6, pad_id, pad_id], [1, 2, 3]])
    mask = np.asarray(padding_mask(ids, pad_id))
    assert mask.shape == (3, 1, 3)
    assert as_bits(mask[:, 0]) == ["110", "100", "111"]


def test_prefix_mask_of_six_source_and_four_target_tokens():
    # UniLM: the source sees itself (6 * 6), the targets the source and their past (7 + 8 + 9 + 10):
    # 70 ones. Left to right throughout would be 1 + 2 + … + 10 = 55.
    mask = np.asarray(prefix_mask(np.array([[0] * 6 + [1] * 4])))[0]
    assert mask.sum() == 70
    assert as_bits(mask) == ["1111110000"] * 6 + [
        "1111111000", "1111111100", "1111111110", "1111111111",
    ]  # fmt: skip
    assert as_bits(causal_mask(4)[0]) == ["1000", "1100", "1110", "1111"]


def test_prefix_mask_looks_at_each_row_of_the_batch():
    mask = prefix_mask(np.array([[0, 0, 0], [1, 1, 1], [0, 1, 1]]))
    assert as_bits(mask[0]) == ["111", "111", "111"]
    assert as_bits(mask[1]) == as_bits(mask[2]) == ["100", "110", "111"]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(1, 7)))
def test_permutation_mask_shows_what_was_generated_before(order):
    # Play the generation back: `order` lists positions 1 … 6 as they are generated.
    expected, seen = np.zeros((6, 6), bool), {0}
    for position in order:
        for column in seen - {6}:
            expected[position - 1, column] = True
        seen.add(position)
    ranks = np.zeros((1, 7), int)
    for rank, position in enumerate(order, start=1):
        ranks[0, position] = rank
    np.testing.assert_array_equal(permutation_mask(ranks)[0], expected)


@pytest.mark.parametrize(
    ("radius", "rows"),
    [
        (0, ["1000", "0100", "0010", "0001"]),
        (1, ["1100", "1110", "0111", "0011"]),
        (9, ["1111"] * 4),
    ],
)
def test_local_mask_sees_so_far_to_each_side(radius, rows):
    assert as_bits(local_mask(4, radius)[0]) == rows
