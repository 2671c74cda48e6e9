"""The number of cores that translations and training divide."""

import os

import pytest

from tf_transformer.inference import ordered


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("20000 100000", 1),
     ("1600000 100000", 8), (None, 8)],
)  # fmt: skip
def test_a_container_has_its_share_of_the_cores(monkeypatch, tmp_path, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(ordered, "_QUOTA", tmp_path / "cpu.max")
    assert ordered.num_cores() == cores
