"""Tests of the attention masks."""

import numpy as np
import pytest

from tf_transformer.layers.masks import causal_mask, local_mask, prefix_mask


def as_bits(mask):
    """`["100", "110", …]`, one string a query."""
    return ["".join(str(int(allowed)) for allowed in row) for row in np.asarray(mask)]


def test_prefix_mask_of_six_source_and_four_target_tokens():
    # UniLM: the source sees itself (6 * 6), the targets the source and their past (7 + 8 + 9 + 10):
    # 70 ones. Left to right throughout would be 1 + 2 + … + 10 = 55.
    mask = np.asarray(prefix_mask(np.array([[0] * 6 + [1] * 4])))[0]
    assert mask.sum() == 70
    assert as_bits(mask) == ["1111110000"] * 6 + [
        "1111111000", "1111111100", "1111111110", "1111111111",
    ]  # fmt: skip
    assert np.asarray(causal_mask(10)).sum() == 55
    assert as_bits(causal_mask(4)[0]) == ["1000", "1100", "1110", "1111"]
    mask = prefix_mask(np.array([[0, 0, 0], [1, 1, 1], [0, 1, 1]]))
    assert as_bits(mask[0]) == ["111", "111", "111"]
    assert as_bits(mask[1]) == as_bits(mask[2]) == ["100", "110", "111"]
    assert np.asarray(prefix_mask(np.ones((1, 300), "uint8"))).sum() == 300 * 301 / 2


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
