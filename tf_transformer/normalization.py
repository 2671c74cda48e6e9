"""One form for texts that look the same: composed letters, and no invisible characters."""

import functools
import itertools
import sys
import unicodedata

# The soft hyphen, and characters without width that no script needs for its letters.
INVISIBLE = "\u00ad\u200b\u2060\ufeff"


def composed(text: str) -> str:
    """Return a text in Unicode's form NFC, without invisible characters."""
    visible = text.translate(dict.fromkeys(map(ord, INVISIBLE)))
    return unicodedata.normalize("NFC", visible)


@functools.cache
def nfc_rules() -> dict[str, str]:
    """Return what Unicode's form NFC replaces (not NFKC, which turns m² into m2), and by what."""
    found = dict.fromkeys(INVISIBLE, "")
    for character in map(chr, range(sys.maxunicode + 1)):
        decomposed = unicodedata.normalize("NFD", character)
        if decomposed == character:
            continue
        composed = unicodedata.normalize("NFC", character)
        found[character] = composed
        # Marks may come in another order, and the first of them may be composed already.
        for marks in map("".join, itertools.permutations(decomposed[1:])):
            for end in range(len(decomposed)):
                start = unicodedata.normalize("NFC", decomposed[0] + marks[:end])
                if unicodedata.normalize("NFC", start + marks[end:]) == composed:
                    found[start + marks[end:]] = composed
    return found
