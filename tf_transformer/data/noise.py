"""Noise that a text keeps its meaning under: capitals, a missing full stop, typing errors.

Tags such as `<BT>`, `>>deu<<` or `de_DE`, and addresses, have no such noise: a word that holds one
of their signs stays as it is.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

# Words in which typing errors are made.
_WORD = re.compile(r"[^\W\d_]{3,}")
_WORDS = re.compile(r"\S+")
# The signs of markup, for a class of characters in a regular expression; also of RE2.
TAG_SIGNS = r"<>\[\]{}_@\\/"
_TAG = re.compile(rf"(?<!\S)[^\s{TAG_SIGNS}]*[{TAG_SIGNS}]\S*")
# Unicode calls these punctuation, but 5 is not 5 %.
_SIGNS = "%‰٪％#＃&＆@＠*＊′″"
# A word is mistyped with this fraction of the probability of noise in a sentence.
_TYPO_FRACTION = 0.5


def upper_case(text: str) -> str:
    """The text in capitals."""
    return _but_tags(str.upper, text)


def lower_case(text: str) -> str:
    """The text without capitals."""
    return _but_tags(str.lower, text)


def _but_tags(change: Callable[[str], str], text: str) -> str:
    return _WORDS.sub(lambda word: word[0] if _TAG.match(word[0]) else change(word[0]), text)


def without_final_punctuation(text: str) -> str:
    """The text without the punctuation at its end, or all of it where nothing else is there."""
    end = len(text.rstrip())
    after_tag = max((tag.end() for tag in _TAG.finditer(text)), default=0)
    while end > after_tag and _is_punctuation(text[end - 1]):
        end -= 1
    return text[:end].rstrip() or text


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P") and character not in _SIGNS


def with_typos(text: str, random: np.random.Generator, rate: float) -> str:
    """The text with typing errors.

    An error swaps two neighbouring letters, omits, doubles or replaces one; a replacement is a
    letter of the same text, so that no alphabet need be known.

    Args:
        text: The text.
        random: Chooses the words and the errors.
        rate: The fraction of words, of three letters or more, that get one error.
    """
    tags = [range(*tag.span()) for tag in _TAG.finditer(text)]
    words = [w for w in _WORD.finditer(text) if not any(w.start() in tag for tag in tags)]
    has_errors = random.random(len(words)) < rate
    if not has_errors.any():
        return text
    letters = "".join(word[0] for word in words)
    parts, end = [], 0
    for word, has_error in zip(words, has_errors, strict=True):
        if has_error:
            parts += [text[end : word.start()], _mistyped(word[0], letters, random)]
            end = word.end()
    return "".join([*parts, text[end:]])


def _mistyped(word: str, letters: str, random: np.random.Generator) -> str:
    place, kind = int(random.integers(len(word) - 1)), int(random.integers(4))
    first, second = word[place], word[place + 1]
    changed = (
        second + first,
        second,
        first + first + second,
        letters[int(random.integers(len(letters)))] + second,
    )[kind]
    return word[:place] + changed + word[place + 2 :]


class SourceNoise:
    """Noise for the sentences of an epoch, so that a model learns to translate it.

    Some sentences lose their capital letters or their final punctuation, and words of any
    sentence may be mistyped (Karpukhin et al. 2019). Nothing is put into capitals: a translator
    folds them, see `inference/tokens.py`.

    Args:
        probability: That a sentence loses its capitals or its final punctuation, 0 to 1; half of
            it is the probability that a word of three letters or more is mistyped.
        random: Chooses.
    """

    def __init__(self, probability: float, random: np.random.Generator) -> None:
        self._probability = probability
        self._random = random
        self._kinds = (lower_case, without_final_punctuation)

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """The sentences, some of them with noise."""
        if not self._probability:
            return list(sentences)
        chosen = self._random.random(len(sentences)) < self._probability
        kinds = self._random.integers(len(self._kinds), size=len(sentences))
        changed = [
            self._kinds[kind](sentence) if is_chosen else sentence
            for sentence, is_chosen, kind in zip(sentences, chosen, kinds, strict=True)
        ]
        rate = _TYPO_FRACTION * self._probability
        return [with_typos(sentence, self._random, rate) for sentence in changed]


def robustness_variants(texts: Sequence[str], seed: int = 0) -> dict[str, list[str]]:
    """What a robust model translates as well as the texts themselves, by names for people.

    The typing errors are a function of texts and seed.
    """
    random = np.random.default_rng(seed)
    return {
        "upper case": [upper_case(text) for text in texts],
        "lower case": [lower_case(text) for text in texts],
        "no final punctuation": [without_final_punctuation(text) for text in texts],
        "5 % of words mistyped": [with_typos(text, random, 0.05) for text in texts],
    }
