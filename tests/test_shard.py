"""Shards: every line is in one of them, in order, and every pair in that of its copies."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_transformer.data.shard import Shard
from tf_transformer.errors import ConfigError

ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n"])


@given(st.lists(st.tuples(st.binary(max_size=9), ENDS)), st.binary(max_size=3), st.integers(1, 7))
def test_the_shards_of_a_file_are_its_lines_in_order(lines, last, count):
    content = b"".join(line + end for line, end in lines) + last
    found, shards = [], [Shard(index, count) for index in range(1, count + 1)]
    for shard in shards:
        before, of_shard = shard.lines(io.BytesIO(content))
        of_shard = [*of_shard]
        assert before == len(found) or not of_shard
        found += of_shard
    assert found == io.BytesIO(content).readlines()
    for digest in (0, 7, 2**60 - 1):
        assert sum(shard.has(digest, 60) for shard in shards) == 1


def test_shards_have_about_as_many_bytes_each():
    content = b"0123456789\n" * 1000
    sizes = [len(b"".join(Shard(n, 4).lines(io.BytesIO(content))[1])) for n in range(1, 5)]
    assert max(sizes) - min(sizes) <= 11


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "1/2/3", ""])
def test_what_is_no_shard_is_named(text):
    with pytest.raises(ConfigError, match="--shard is I/N"):
        Shard.of(text)
