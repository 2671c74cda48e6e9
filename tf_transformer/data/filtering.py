"""Pairs from which a model should not learn: which to drop from a corpus, and why."""

import collections
import dataclasses
import functools
import hashlib
import statistics
import unicodedata
from collections.abc import Collection, Iterable

from tf_transformer.data.text import DataError, is_blank
from tf_transformer.errors import did_you_mean

# Short sentences differ most in length, so each side counts as this many characters more.
_ALLOWANCE = 10
_EXAMPLES = "Latin, Cyrillic, Greek, Arabic, Devanagari, Hangul, Han, Hiragana or Katakana"


@dataclasses.dataclass
class PairFilter:
    """The rules of a corpus, and digests of the pairs that were kept, about 80 bytes each.

    Args:
        length_ratio: The corpus' characters of a target for each character of its source.
        max_ratio: How many times as long as this ratio says a side may be, with an allowance for
            short sentences.
        max_characters: The largest number of characters of a side.
        scripts: For each side what `script_words` returns; nothing allows all scripts.
        excluded: Lines that neither side may have; see `normalized`.
    """

    length_ratio: float
    max_ratio: float
    max_characters: int
    scripts: tuple[Collection[str], Collection[str]] = ((), ())
    excluded: dataclasses.InitVar[Iterable[str]] = ()

    def __post_init__(self, excluded: Iterable[str]) -> None:
        self._excluded = {_digest(normalized(line)) for line in excluded}
        self._kept: set[int] = set()

    def reason_to_drop(self, source: str, target: str) -> str | None:
        """Return the first reason to drop a pair, or None if it is kept."""
        if is_blank(source) or is_blank(target):
            return "with a blank side"
        if max(len(source), len(target)) > self.max_characters:
            return f"with a side of more than {self.max_characters:,} characters"
        shorter, longer = sorted((self.length_ratio * len(source), len(target)))
        if longer + _ALLOWANCE > self.max_ratio * (shorter + _ALLOWANCE):
            return "whose lengths do not fit together"
        sides = normalized(source), normalized(target)
        if not all(map(_is_written_in, sides, self.scripts)):
            return "in another script"
        if sides[0] == sides[1]:
            return "whose target is its source"
        if not self._excluded.isdisjoint(map(_digest, sides)):
            return "with an excluded line"
        digest = _digest(source, target)
        if digest in self._kept:
            return "that occurred before"
        self._kept.add(digest)
        return None


def median_length_ratio(pairs: Iterable[tuple[str, str]]) -> float:
    """Return the median number of target characters for each source character, by hundredths."""
    ratios = collections.Counter(
        round(len(target) / len(source), 2)
        for source, target in pairs
        if not (is_blank(source) or is_blank(target))
    )
    if not ratios:
        raise DataError("no pair is left, because each has a blank side; give at least one pair")
    return statistics.median_low(ratios.elements())


def normalized(text: str) -> str:
    """Return a text without differences of case, white space and compatible characters (NFKC)."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def script_words(scripts: Iterable[str]) -> frozenset[str]:
    """Return the words with which the names of all letters of Unicode scripts begin.

    Raises:
        DataError: A script is unknown.
    """
    words = {script: script.upper().split("_")[0] for script in scripts}
    words = {script: "CJK" if word == "HAN" else word for script, word in words.items()}
    letters = filter(str.isalpha, map(chr, range(0x20000)))
    known = {_first_word(letter) for letter in letters} if words else set()
    for script, word in words.items():
        if word not in known:
            advice = did_you_mean(word, known, f"Unicode has {_EXAMPLES}, for example.")
            raise DataError(f"the script {script} is unknown; {advice}")
    return frozenset(words.values())


@functools.cache
def _first_word(letter: str) -> str:
    """Return the first word of a letter's name, which is its script: LATIN SMALL LETTER A."""
    return unicodedata.name(letter, "").split(" ")[0]


def _is_written_in(text: str, words: Collection[str]) -> bool:
    """Return whether at least half of the letters have names that begin so."""
    letters = [_first_word(letter) for letter in text if letter.isalpha()] if words else []
    return 2 * sum(word in words for word in letters) >= len(letters)


def _digest(*lines: str) -> int:
    """Return 60 bits, for which Python needs the fewest bytes; 10⁸ pairs share some by 0.4 %."""
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8)
    return int.from_bytes(digest.digest()) >> 4
