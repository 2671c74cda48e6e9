"""Noise that keeps the meaning of a text: lost capitals, lost full stops and typing errors.

Words with markup characters or digits stay as they are: tags (`<BT>`, `>>deu<<`, `de_DE`),
placeholders (`%PRODUCTNAME`, `$(ARG1)`) and addresses.
"""

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from tf_transformer.run_tables import TAG_SIGNS

_TAG = re.compile(rf"(?<!\S)[^\s{TAG_SIGNS}]*[{TAG_SIGNS}]\S*")
MARKUP_SIGNS = rf"{TAG_SIGNS}%$#"
# A word with such a sign, a digit, or a bracket that does not begin it.
_MARKUP = re.compile(rf"(?<!\S)\S*(?:[{MARKUP_SIGNS}\d]|\S\()\S*")
_WORDS = re.compile(r"\S+")
# Markup, as group 1, and words of three letters or more, which may get typing errors.
_MARKUP_OR_WORD = re.compile(rf"({_MARKUP.pattern})|[^\W\d_]{{3,}}")
_LONG_WORD = re.compile(r"([^\W\d_]{3})([^\W\d_]{3})")
_DOTLESS = {"ı", "İ"}  # the letters of Turkish and Azeri that no other language has
# Unicode calls these punctuation, but they have a meaning: 5 is not 5 %.
_SIGNS = "%‰٪％#＃&＆@＠*＊′″"


def has_dotless_i(texts: Sequence[str]) -> bool:
    """Return whether texts are Turkish or Azeri, in which I is the capital of ı, and İ that of i.

    In a third of the texts, one of the letters ı and İ must occur: half of the words and sentences
    of user interfaces in Turkish have one.
    """
    return 3 * sum(not _DOTLESS.isdisjoint(_dotted(text)) for text in texts) > len(texts)


def _dotted(text: str) -> str:
    return text.replace("I\u0307", "İ")


def upper_case(text: str, dotless_i: bool = False) -> str:
    """Return the text in capitals; for `dotless_i` see `has_dotless_i`."""
    return _but_markup(lambda word: (word.replace("i", "İ") if dotless_i else word).upper(), text)


def lower_case(text: str, dotless_i: bool = False) -> str:
    """Return the text without capitals; for `dotless_i` see `has_dotless_i`."""

    def lower(word: str) -> str:
        # Without the dot that Python would put on the small i of İ.
        return (word.replace("I", "ı") if dotless_i else word).replace("İ", "i").lower()

    return _but_markup(lower, _dotted(text))


def _but_markup(change: Callable[[str], str], text: str) -> str:
    return _WORDS.sub(lambda word: word[0] if _MARKUP.match(word[0]) else change(word[0]), text)


def without_final_punctuation(text: str) -> str:
    """Return the text without its final punctuation, or unchanged if nothing else is left."""
    end = len(text.rstrip())
    after_tag = max((tag.end() for tag in _TAG.finditer(text)), default=0)
    # The bracket of $(ARG1) stays, and the full stop after it goes.
    *_, last = ["", *_MARKUP.findall(text)]
    signs = _SIGNS + (")" if last and text[:end].endswith(last) else "")
    while end > after_tag and _is_punctuation(text[end - 1], signs):
        end -= 1
    shorter = text[:end].rstrip()
    return shorter if len(shorter) > after_tag else text


def _is_punctuation(character: str, signs: str) -> bool:
    return unicodedata.category(character).startswith("P") and character not in signs


def with_typos(text: str, random: np.random.Generator, rate: float) -> str:
    """Return the text with one error in a fraction `rate` of its words of three letters or more.

    An error swaps two neighbouring letters, or omits, doubles or replaces one letter. The
    replacement is a letter of the same text, so that no alphabet has to be known.
    """
    words = [found[0] for found in _MARKUP_OR_WORD.finditer(text) if found[1] is None]
    letters, has_error = "".join(words), iter(random.random(len(words)) < rate)

    def changed(found: re.Match[str]) -> str:
        is_kept = found[1] is not None or not next(has_error)
        return found[0] if is_kept else _mistyped(found[0], letters, random)

    return _MARKUP_OR_WORD.sub(changed, text)


def _mistyped(word: str, letters: str, random: np.random.Generator) -> str:
    place, kind = int(random.integers(len(word) - 1)), int(random.integers(4))
    first, second = word[place], word[place + 1]
    other = letters[int(random.integers(len(letters)))]
    changed = (second + first, second, first + first + second, other + second)[kind]
    return word[:place] + changed + word[place + 2 :]


def add_noise(
    sentences: Sequence[str], probability: float, random: np.random.Generator
) -> list[str]:
    """Return the sentences, some with noise, so that a model learns to translate noisy text.

    With `probability`, a sentence loses its capitals or its final punctuation. With half of it,
    each word of three letters or more is mistyped (Karpukhin et al. 2019). No text is put into
    capitals, because a translator folds capitals, see `inference/capitals.py`.
    """
    lower = functools.partial(lower_case, dotless_i=has_dotless_i(sentences))
    kinds = (lower, without_final_punctuation)
    chosen = random.random(len(sentences)) < probability
    kind_of = random.integers(len(kinds), size=len(sentences))
    return [
        with_typos(kinds[kind](text) if is_chosen else text, random, probability / 2)
        for text, is_chosen, kind in zip(sentences, chosen, kind_of, strict=True)
    ]


def _with_invisible(character: str, text: str) -> str:
    return _but_markup(lambda word: _LONG_WORD.sub(rf"\1{character}\2", word), text)


def robustness_variants(texts: Sequence[str], seed: int = 0) -> dict[str, list[str]]:
    """Return noisy versions of texts by readable names; the same seed gives the same noise."""
    random, dotless_i = np.random.default_rng(seed), has_dotless_i(texts)
    return {
        "upper case": [upper_case(text, dotless_i) for text in texts],
        "lower case": [lower_case(text, dotless_i) for text in texts],
        "no final punctuation": [without_final_punctuation(text) for text in texts],
        "5 % of words mistyped": [with_typos(text, random, 0.05) for text in texts],
        "decomposed accents (NFD)": [unicodedata.normalize("NFD", text) for text in texts],
        "soft hyphens": [_with_invisible("\u00ad", text) for text in texts],
        "zero-width spaces": [_with_invisible("\u200b", text) for text in texts],
    }
