"""Marks: reserved subwords that stand for pieces of a text, such as placeholders and tags."""

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

# Characters of Unicode's private use area, which no subword but a mark contains. The plain ones
# stand for a piece, and an opening and a closing one for the two tags of a pair.
_FIRST = range(0xF500, 0xF5C0, 0x40)
MOST_MARKS = 0x40
# Expressions of RE2.
PLAIN_PATTERN, OPENING_PATTERN, CLOSING_PATTERN = (
    rf"[\x{{{first:X}}}-\x{{{first + MOST_MARKS - 1:X}}}]" for first in _FIRST
)
RESERVED_PATTERN = r"[\x{F500}-\x{F5FF}]"
RESERVED = frozenset(map(chr, range(0xF500, 0xF600)))


class _Kinds(NamedTuple, Generic[T]):
    """The three kinds of marks, each in the order of its numbers."""

    plain: tuple[T, ...] = ()
    opening: tuple[T, ...] = ()
    closing: tuple[T, ...] = ()

    @property
    def all(self) -> list[T]:
        """The plain, the opening and the closing marks."""
        return [*self.plain, *self.opening, *self.closing]


class MarkSymbols(_Kinds[str]):
    """Marks as characters."""

    @classmethod
    def first(cls, count: int) -> "MarkSymbols":
        """Return `count` plain marks and half as many pairs."""
        kinds = zip(_FIRST, (count, count // 2, count // 2), strict=True)
        return cls(*(tuple(map(chr, range(first, first + size))) for first, size in kinds))


class MarkIds(_Kinds[int]):
    """The token ids of the marks of a vocabulary."""

    @classmethod
    def of(cls, subwords: Iterable[str]) -> "MarkIds":
        """Return the ids of the marks among the subwords of a vocabulary."""
        ids = {subword: index for index, subword in enumerate(subwords) if subword in RESERVED}
        kinds = MarkSymbols.first(MOST_MARKS)
        return cls(*(tuple(ids[symbol] for symbol in kind if symbol in ids) for kind in kinds))
