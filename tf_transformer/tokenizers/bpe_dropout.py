"""BPE dropout: byte-pair encoding that leaves out some merges at random."""

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

# Splits of words of more characters hardly repeat, so they are not kept.
_LONGEST_KEPT = 20
_MOST_KEPT = 300_000


class BpeDropout:
    """Splits words into subwords, each time another way (Provilkov et al. 2020, section 3).

    As in SentencePiece, a pair of neighbours gets one chance to be merged. The library's own
    sampling would do, but its random numbers differ between processes, whatever the seed.

    Args:
        ranks: The subwords that merges make; those of lower rank are made first.
        ids_of: Returns the token ids of a subword, also of a character in no vocabulary.
    """

    def __init__(self, ranks: Mapping[str, float], ids_of: Callable[[str], Sequence[int]]) -> None:
        self._ranks = ranks
        self._ids_of = ids_of
        self._splits: dict[str, _Split] = {}
        self._num_kept = 0

    def sample(self, words: Sequence[str], dropout: float, seed: int) -> list[list[int]]:
        """Returns the token ids of each word, a function of the seed.

        Args:
            words: The words.
            dropout: Probability that a merge is left out, more than 0.
            seed: Of the random numbers.
        """
        if self._num_kept > _MOST_KEPT:
            self._splits, self._num_kept = {}, 0
        random = np.random.default_rng(seed)
        splits = [self._split_of(word) or self._long(word, dropout, random) for word in words]
        # Number of the next merge to leave out, for words that are not done: all at once.
        merges = np.zeros(len(words), np.int64)
        todo = np.arange(len(words))
        while todo.size:
            merges[todo] += random.geometric(dropout, todo.size) - 1
            counts = np.fromiter((splits[index].num_merges for index in todo), np.int64)
            todo = todo[merges[todo] < counts]
            for index, merge in zip(todo.tolist(), merges[todo].tolist(), strict=True):
                splits[index] = self._without(words[index], splits[index], merge)
            merges[todo] += 1
        return [split.ids for split in splits]

    def _split_of(self, word: str) -> "_Split | None":
        """The split without dropout; None for a long word."""
        split = self._splits.get(word)
        if split is None and len(word) <= _LONGEST_KEPT:
            split = self._splits[word] = self._split(word, ())
        return split

    def _without(self, word: str, split: "_Split", merge: int) -> "_Split":
        """The split that leaves out one merge more."""
        other = split.without.get(merge)
        if other is None:
            other = split.without[merge] = self._split(word, (*split.left_out, merge))
        return other

    def _long(self, word: str, dropout: float, random: np.random.Generator) -> "_Split":
        # There are fewer candidates than three times the characters.
        left_out = np.cumsum(random.geometric(dropout, 3 * len(word))) - 1
        ids, _ = self._merge(word, iter(left_out.tolist()))
        return _Split(ids, 0, ())

    def _split(self, word: str, left_out: tuple[int, ...]) -> "_Split":
        self._num_kept += 1
        return _Split(*self._merge(word, iter(left_out)), left_out)

    def _merge(self, word: str, left_out: Iterator[int]) -> tuple[list[int], int]:
        """Returns the token ids of a word, and how many merges were tried.

        Args:
            word: The word.
            left_out: Numbers of the merges to leave out, in the order in which they are tried.
        """
        symbols, ranks = list(word), self._ranks
        before, after = list(range(-1, len(word) - 1)), list(range(1, len(word) + 1))
        candidates = []

        def propose(left: int, right: int) -> None:
            if left >= 0 and right < len(symbols):
                merged = symbols[left] + symbols[right]
                if merged in ranks:
                    heapq.heappush(candidates, (ranks[merged], left, right, merged))

        for left, right in itertools.pairwise(range(len(word))):
            propose(left, right)
        number, next_left_out = 0, next(left_out, None)
        while candidates:
            _, left, right, merged = heapq.heappop(candidates)
            # One of them may have been merged with another neighbour.
            if not (symbols[left] and symbols[right] and symbols[left] + symbols[right] == merged):
                continue
            number += 1
            if number - 1 == next_left_out:
                next_left_out = next(left_out, None)
                continue
            symbols[left], symbols[right] = merged, ""
            after[left] = after[right]
            if after[right] < len(symbols):
                before[after[right]] = left
            propose(before[left], left)
            propose(left, after[left])
        ids = itertools.chain.from_iterable(self._ids_of(symbol) for symbol in symbols if symbol)
        return list(ids), number


class _Split:
    """One way to split a word: its token ids, and the ways that leave out one merge more."""

    __slots__ = ("ids", "left_out", "num_merges", "without")

    def __init__(self, ids: list[int], num_merges: int, left_out: tuple[int, ...]) -> None:
        self.ids, self.num_merges, self.left_out = ids, num_merges, left_out
        self.without: dict[int, _Split] = {}
