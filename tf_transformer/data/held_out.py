"""Validation pairs that are held out of the training text."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from random import Random

from tf_transformer.data.lines import DataError, counted
from tf_transformer.data.parallel import Fingerprint, ParallelText
from tf_transformer.data.text_files import TextFiles

_MOST = 1_000
_FEW = 50
# Of so many pairs in each stretch of the text, the one whose source is the rarest is held out.
_CANDIDATES = 8


def _key(pair: tuple[str, str]) -> str:
    """What must not be both trained and held out: the source, or of text alone the sentence.

    White space is as a tokenizer reads it.
    """
    return " ".join((pair[0] or pair[1]).split())


class Remainder:
    """The pairs of a text whose source sentences are not held out, read again for each iteration.

    Sources that differ in white space alone are the same. Where sources are empty, the sentence
    itself takes the place of its source.

    Args:
        text: The text. It stays where it is, in files or in memory.
        held_out: How often each source sentence that is held out occurs in the text; words are
            separated by one space.

    Attributes:
        num_blank: Number of pairs that the text dropped because a side is blank.
        num_same_source: Number of pairs dropped because another pair with their source sentence is
            held out.
    """

    def __init__(self, text: ParallelText | TextFiles, held_out: Mapping[str, int]) -> None:
        self._text = text
        self._held_out = held_out
        self.num_blank = text.num_blank
        self.num_same_source = sum(held_out.values()) - len(held_out)

    def __len__(self) -> int:
        """Returns the number of pairs."""
        return len(self._text) - len(self._held_out) - self.num_same_source

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Gives the pairs, (source, target), in the order of the text."""
        return (pair for pair in self._text if _key(pair) not in self._held_out)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        """Identifies these sentences by their content."""
        return Fingerprint.of(self)


def hold_out(text: ParallelText | TextFiles, where: str) -> tuple[Remainder, ParallelText]:
    """Splits a text for training and validation; the same text gives the same parts.

    The text is divided into stretches of equal length, and each gives one pair, so that the
    validation text is like all of the text. In a text of subtitles many lines are `"Yes."`: a
    source sentence that is held out is not trained, so a rare one is preferred. Only candidates
    are kept in memory, not the text, which is read twice.

    Args:
        text: The pairs.
        where: What errors name, such as the files.

    Returns:
        The training and the validation text, at least a half and about a twentieth of the pairs
        (see `num_held_out`). No source sentence is in both.

    Raises:
        DataError: If there is one pair only, or most of the pairs have the same source sentence.
    """
    unit, same = "pair", "have the same source sentence"
    if not next(iter(text))[0]:
        unit, same = "sentence", "are the same"
    if len(text) < 2:
        raise DataError(
            f"{where}: {counted(len(text), unit)}, of which none can be held out for validation; "
            f"give at least 2 {unit}s, or files for validation"
        )
    stretches = _candidates(text, num_held_out(len(text)))
    occurrences = dict.fromkeys((_key(pair) for pairs in stretches for pair in pairs), 0)
    for key in map(_key, text):
        if key in occurrences:
            occurrences[key] += 1
    chosen: dict[str, tuple[str, str]] = {}
    num_removed = 0
    for pairs in stretches:
        for pair in sorted(pairs, key=lambda pair: occurrences[_key(pair)]):
            key = _key(pair)
            if key not in chosen and num_removed + occurrences[key] <= len(text) // 2:
                chosen[key] = pair
                num_removed += occurrences[key]
                break
    if not chosen:
        raise DataError(
            f"{where}: most {unit}s {same}, so none can be held out for validation; give files "
            "for it"
        )
    remainder = Remainder(text, {key: occurrences[key] for key in chosen})
    return remainder, ParallelText(*zip(*chosen.values(), strict=True))


def num_repeated(train: ParallelText | TextFiles, validation: ParallelText) -> int:
    """Returns how many validation pairs are training pairs, but for white space."""

    def words(pair):
        return tuple(tuple(side.split()) for side in pair)

    trained = set(map(words, validation)).intersection(map(words, train))
    return sum(words(pair) in trained for pair in validation)


def num_held_out(num_pairs: int) -> int:
    """Returns how many of so many pairs, 2 or more, are held out.

    It is a twentieth, but at least 50 where that is at most a tenth: BLEU of fewer sentences says
    little. 1,000 are enough for any text.
    """
    at_least = min(_FEW, num_pairs // 10)
    return max(1, min(max(num_pairs // 20, at_least), _MOST))


def _candidates(text: ParallelText | TextFiles, count: int) -> list[list[tuple[str, str]]]:
    """Returns some pairs of each of `count` stretches of the text."""
    # At random, but always the same: pairs at equal distances might all be of one kind.
    random = Random(0)
    bounds = [index * len(text) // count for index in range(count + 1)]
    drawn = [
        [start + int(random.random() * (stop - start)) for _ in range(_CANDIDATES)]
        for start, stop in itertools.pairwise(bounds)
    ]
    wanted = set(itertools.chain.from_iterable(drawn))
    pairs = {position: pair for position, pair in enumerate(text) if position in wanted}
    return [[pairs[position] for position in positions] for positions in drawn]
