"""Pairs from which a model should not learn: which to drop from a corpus, and why."""

import collections
import dataclasses
import functools
import hashlib
import re
import statistics
import string
import unicodedata
from collections.abc import Collection, Iterable

from tf_transformer.data.lines import DataError, is_blank
from tf_transformer.errors import did_you_mean

DIGEST_BITS = 60  # for which Python needs the fewest bytes
# Short sentences differ most in length, so each side counts as this many characters more.
_ALLOWANCE = 10
# Addresses, tags, escapes, and `{name}`, `%s`, `%(name)s`, `$(NAME)`, `#NAME#`.
_PLACEHOLDERS = re.compile(
    r"\b\w+://\S+|\bwww\.\S+|\b[\w.+-]+@[\w.-]+|</?\w[^<>]*>|&#?\w+;|\\[nrt]"
    r"|\{[^{}]*\}|[%$#@]+[-+.*\d$]*(?:[(\[]\w+[)\]])?\w*",
    re.ASCII,
)
_PUNCTUATION = string.punctuation + " 。、،؛؟।«»“”„‘’‚¿¡–—"
_EXAMPLES = "Latin, Cyrillic, Greek, Arabic, Devanagari, Hangul, Han, Hiragana or Katakana"


@dataclasses.dataclass
class PairFilter:
    """The rules of a corpus, and digests of the pairs that were kept, about 80 bytes each.

    Args:
        max_ratio: How many times as long as `length_ratio` says a side may be, with an allowance
            for short sentences.
        max_characters: The largest number of characters of a side.
        scripts: For each side what `script_words` returns; nothing allows all scripts.
        excluded: Lines that neither side may have; see `normalized`.
        keep_copies: Whether a target may be its source, apart from punctuation at its ends.
        length_ratio: The corpus' characters of a target for each character of its source; None
            accepts all lengths.
    """

    max_ratio: float
    max_characters: int
    scripts: tuple[Collection[str], Collection[str]] = ((), ())
    excluded: dataclasses.InitVar[Iterable[str]] = ()
    keep_copies: bool = False
    length_ratio: float | None = None

    def __post_init__(self, excluded: Iterable[str]) -> None:
        self._excluded = {digest(normalized(line)) for line in excluded}
        self._kept: set[int] = set()

    def measure_lengths(self, pairs: Iterable[tuple[str, str]]) -> float:
        """Set `length_ratio` and return it: the median of what no other rule drops, by hundredths.

        Copies and pairs without a word do not count, because they have the same length in any two
        languages. If there are no others, the ratio is 1.
        """
        self.length_ratio = None
        ratios = collections.Counter(
            round(len(pair[1]) / len(pair[0]), 2)
            for pair in pairs
            if not self.reason_to_drop(*pair)
            and all(map(_has_words, pair))
            and not _is_copy(*map(normalized, pair))
        )
        self._kept.clear()
        self.length_ratio = statistics.median_low(ratios.elements()) if ratios else 1.0
        return self.length_ratio

    def reason_to_drop(self, source: str, target: str) -> str | None:
        """Return the first reason to drop a pair, or None if it is kept."""
        if is_blank(source) or is_blank(target):
            return "with a blank side"
        if max(len(source), len(target)) > self.max_characters:
            return f"with a side of more than {self.max_characters:,} characters"
        sides = normalized(source), normalized(target)
        is_copy = _is_copy(*sides)
        # A kept copy is a name, which the target writes as the source does.
        if not all(map(_is_written_in, sides[:1] if is_copy else sides, self.scripts)):
            return "in another script"
        if is_copy and not self.keep_copies and _has_words(sides[0]):
            return "whose target is its source"
        if not self._excluded.isdisjoint(map(digest, sides)):
            return "with an excluded line"
        if not is_copy and self.length_ratio is not None:
            shorter, longer = sorted((self.length_ratio * len(source), len(target)))
            if longer + _ALLOWANCE > self.max_ratio * (shorter + _ALLOWANCE):
                return "whose lengths do not fit together"
        found = digest(source, target)
        if found in self._kept:
            return "that occurred before"
        self._kept.add(found)
        return None


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
    counts = collections.Counter(map(_first_word, letters) if words else ())
    known = {word for word, count in counts.items() if count > 5}  # unlike the KELVIN SIGN
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
    text = _PLACEHOLDERS.sub("", text) if words else ""
    letters = [_first_word(letter) for letter in text if letter.isalpha()]
    return 2 * sum(word in words for word in letters) >= len(letters)


def _has_words(text: str) -> bool:
    """Return whether a text has letters beside placeholders."""
    return any(map(str.isalpha, _PLACEHOLDERS.sub("", text)))


def _is_copy(source: str, target: str) -> bool:
    """Return whether normalized texts are the same apart from punctuation at their ends."""
    return source.strip(_PUNCTUATION) == target.strip(_PUNCTUATION)


def digest(*lines: str) -> int:
    """Return a digest of `DIGEST_BITS`; 10⁸ pairs share some by 0.4 %."""
    found = hashlib.blake2b("\n".join(lines).encode(), digest_size=8)
    return int.from_bytes(found.digest()) >> (64 - DIGEST_BITS)
