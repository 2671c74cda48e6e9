"""Which words of a sentence and of its translation correspond, learned from the pairs alone."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

Span = tuple[int, int]

# Han, Hiragana and Katakana, of which each character counts as a word.
_CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_MARKS = "\u0300-\u036f\u0591-\u05bd\u0610-\u065f\u0900-\u0963\u0966-\u0dff\u0e31-\u0e4e"
_LETTERS = rf"(?:[^\W_{_CJK}]|[{_MARKS}])+"
_WORD = re.compile(rf"[{_CJK}]|{_LETTERS}(?:['’-]{_LETTERS})*")
_MIN_COUNT = 3  # of a word in the sample, to be learned
_MAX_CELLS = 10_000_000  # two words of one pair; learning takes about 70 bytes for each
_NULL = 0.1  # the weight of "corresponds to nothing", beside chances that sum to 1
_NEIGHBOUR = 0.5  # of the chances of a CJK neighbour, that words elsewhere must have
_SHARE = 0.65  # of a word's chances, that a span must have; over a half, so that spans are disjoint


class WordLinks:
    """The chances that words translate each other, by IBM Model 1 in both directions.

    Args:
        chances: For a case-folded source word and target word, the chance of the target word
            given the source word, and that of the source word given the target word.
    """

    def __init__(self, chances: dict[tuple[str, str], tuple[float, float]]) -> None:
        self._chances = chances

    @classmethod
    def learn(cls, pairs: Iterable[tuple[str, str]]) -> "WordLinks":
        """Learn from pairs in random order: all, or as many as bounded memory allows."""
        sample, cells = [], 0
        for pair in pairs:
            sample.append([[word for word, _ in _words(side)] for side in pair])
            cells += len(sample[-1][0]) * len(sample[-1][1])
            if cells > _MAX_CELLS:
                break
        sources, source, rows = _numbered([pair[0] for pair in sample])
        targets, target, columns = _numbered([pair[1] for pair in sample])
        # Each target word meets all source words of its pair: their positions, side by side.
        sizes = np.repeat(rows, columns)
        at_target = np.repeat(np.arange(len(target)), sizes)
        first = np.repeat(np.cumsum(rows) - rows, columns) - np.cumsum(sizes) + sizes
        at_source = np.arange(len(at_target)) + np.repeat(first, sizes)
        keys = source[at_source] * len(targets) + target[at_target]
        keys, cell = np.unique(keys, return_inverse=True)
        source, target = np.divmod(keys, max(1, len(targets)))
        both = np.stack([_learned(cell, source, at_target), _learned(cell, target, at_source)], 1)
        kept = both.max(1) > _NULL / 5
        words = ((sources[s], targets[t]) for s, t in zip(source[kept], target[kept], strict=True))
        return cls(dict(zip(words, map(tuple, both[kept].tolist()), strict=True)))

    def spans(self, source: str, target: str, longest: int = 4) -> list[tuple[Span, Span]]:
        """Return spans of characters that correspond: disjoint, and as long as is consistent.

        The side of a span that has fewer words has at most `longest`. No word inside corresponds
        to one outside or to nothing, and only blanks are between the words.
        """
        sides = (source, _words(source)), (target, _words(target))
        if not all(words for _, words in sides):
            return []
        forward, backward = self._shares(*([word for word, _ in words] for _, words in sides))
        owned, found, begin = [[] for _ in forward], [], 0  # the targets of each source word
        for n, owner in enumerate(backward.argmax(1)):
            owned[owner].append(n)
        forward, backward = forward.tolist(), backward.tolist()
        while begin < len(forward):
            best, ours = None, []
            for end in range(begin + 1, min(begin + 3 * longest, len(forward)) + 1):
                if sum(forward[end - 1]) < _SHARE:
                    break
                ours += owned[end - 1]
                if ours and min(end - begin, len(ours)) <= longest:
                    inside = (begin, end), (min(ours), max(ours) + 1)
                    if _consistent(*sides[0], forward, *inside) and _consistent(
                        *sides[1], backward, *inside[::-1]
                    ):
                        best = inside
            if best:
                found.append(
                    tuple(
                        (words[first][1][0], words[stop - 1][1][1])
                        for (_, words), (first, stop) in zip(sides, best, strict=True)
                    )
                )
            begin = best[0][1] if best else begin + 1
        return found

    def _shares(self, sources: list[str], targets: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return what share of each source word each target word has, and the reverse."""
        none, get = (0.0, 0.0), self._chances.get
        cells = np.array([[get((word, other), none) for other in targets] for word in sources])
        for n, word in enumerate(sources):
            if word in targets and (len(word) > 1 or word.isdigit()):
                cells[n, [word == other for other in targets]] += 1
        forward, backward = cells[..., 0], cells[..., 1].T
        return tuple(side / (side.sum(1, keepdims=True) + _NULL) for side in (forward, backward))


def _words(text: str) -> list[tuple[str, Span]]:
    """Return the words of a text, case-folded, and where they are."""
    return [(match[0].casefold(), match.span()) for match in _WORD.finditer(text)]


def _numbered(sentences: list[list[str]]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the frequent words, their numbers in all sentences, and how many each has."""
    counts = Counter(itertools.chain.from_iterable(sentences))
    frequent = [word for word, count in counts.items() if count >= _MIN_COUNT]
    numbers = {word: n for n, word in enumerate(frequent)}
    known = [[numbers[word] for word in words if word in numbers] for words in sentences]
    flat = np.fromiter(itertools.chain.from_iterable(known), int)
    return frequent, flat, np.fromiter(map(len, known), int)


def _learned(cell: np.ndarray, given: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return for each kind of cell the chance of one word given the other, by IBM Model 1.

    Args:
        cell: For each cell, which is two words of a pair, its kind.
        given: For each kind the word that is given.
        place: For each cell the position of the word to explain.
    """
    chances = np.ones(len(given))
    for _ in range(5):
        weights = chances[cell]
        weights /= (np.bincount(place, weights) + _NULL)[place]
        counts = np.bincount(cell, weights)
        chances = counts / np.bincount(given, counts)[given]
    return chances


def _consistent(
    text: str, words: list[tuple[str, Span]], shares: list[list[float]], inside: Span, others: Span
) -> bool:
    """Return whether words belong to others on the other side, and CJK neighbours elsewhere."""
    begin, end = inside
    for n in range(max(0, begin - 1), min(end + 1, len(words))):
        share = sum(shares[n][slice(*others)])
        if begin <= n < end and share < _SHARE:
            return False
        gap = text[words[n - 1][1][1] : words[n][1][0]]
        if begin < n < end and gap and not gap.isspace():
            return False
        if n in (begin - 1, end):  # half of a word of several characters has no translation
            edge = begin if n < begin else n
            glued = words[edge - 1][1][1] == words[edge][1][0]
            if glued and min(words[edge - 1][0], words[edge][0]) > "\u3000":
                if sum(shares[n]) - share < _NEIGHBOUR:
                    return False
    return True
