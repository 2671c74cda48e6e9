"""Marks: reserved subwords that stand for pieces of a text, such as placeholders and tags."""

from collections.abc import Iterable
from typing import NamedTuple

# Characters of Unicode's private use area, which no subword but a mark contains. The plain ones
# stand for a piece, and an opening and a closing one for the two tags of a pair.
_PLAIN, _OPENING, _CLOSING = range(0xF500, 0xF5C0, 0x40)
MOST_MARKS = 0x40


class MarkIds(NamedTuple):
    """The token ids of the marks of a vocabulary, each kind in the order of its numbers."""

    plain: tuple[int, ...] = ()
    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()

    @property
    def all(self) -> list[int]:
        """The ids of all marks: the plain, the opening and the closing ones."""
        return [*self.plain, *self.opening, *self.closing]

    @classmethod
    def of(cls, subwords: Iterable[str]) -> "MarkIds":
        """Return the ids of the marks among the subwords of a vocabulary."""
        ids = {subword: index for index, subword in enumerate(subwords)}
        kinds = (range(first, first + MOST_MARKS) for first in (_PLAIN, _OPENING, _CLOSING))
        return cls(*(tuple(ids[chr(c)] for c in kind if chr(c) in ids) for kind in kinds))


def mark_symbols(count: int) -> list[str]:
    """Return `count` plain marks, and half as many opening and closing marks, as characters."""
    counts = ((_PLAIN, count), (_OPENING, count // 2), (_CLOSING, count // 2))
    return [chr(first + number) for first, most in counts for number in range(most)]
