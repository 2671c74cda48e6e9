"""Shards of text, for as many jobs: the same job array gives each of them its part."""

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tf_transformer.errors import ConfigError

_CHUNK_BYTES = 2**20


class Shard(NamedTuple):
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    @classmethod
    def of(cls, text: str) -> "Shard":
        """Return the shard that a text such as `"3/10"` names, or raise a `ConfigError`."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        shard = cls(*map(int, match.groups())) if match else cls(0, 0)
        if not 0 < shard.index <= shard.count:
            raise ConfigError(f"--shard is I/N, from 1/N to N/N, such as 3/10; received {text!r}.")
        return shard

    def lines(self, file: BinaryIO) -> tuple[int, Iterator[bytes]]:
        """Return the number of lines before this shard, and its lines, end included.

        The shards of a file follow one another and have about as many bytes each.
        """
        size = file.seek(0, 2)
        start, end = (size * part // self.count for part in (self.index - 1, self.index))
        start, end = (_next_line(file, place) for place in (start, end))
        file.seek(0)
        before, left = 0, start
        while chunk := file.read(min(_CHUNK_BYTES, left)):
            before, left = before + chunk.count(b"\n"), left - len(chunk)

        def lines() -> Iterator[bytes]:
            place = start
            while place < end:
                line = file.readline()
                place += len(line)
                yield line

        return before, lines()

    def has(self, digest: int, bits: int) -> bool:
        """Return whether a digest of so many bits is in this shard's range."""
        return (digest * self.count) >> bits == self.index - 1


def _next_line(file: BinaryIO, place: int) -> int:
    """Return where the first line starts that does not start before `place`."""
    if place == 0:
        return 0
    file.seek(place - 1)
    return place - 1 + len(file.readline())
