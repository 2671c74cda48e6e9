"""Practice with marks on text that has no placeholders or tags of its own."""

import re
from collections.abc import Sequence

import numpy as np

from tf_transformer.data.noise import MARKUP_SIGNS
from tf_transformer.data.word_links import Span, WordLinks
from tf_transformer.run_tables import TAG_SIGNS
from tf_transformer.tokenizers.marks import RESERVED, MarkSymbols

_TAG = re.compile(rf"(?:\S*[{TAG_SIGNS}]\S* )?")
_NO_SPAN = frozenset(MARKUP_SIGNS.replace("\\", ""))  # such as the signs around <BT> and {name}


def practise_marks(
    pairs: Sequence[tuple[str, str]],
    probability: float,
    random: np.random.Generator,
    links: WordLinks,
    symbols: MarkSymbols,
) -> list[tuple[str, str]]:
    """Return the pairs, of which some have marks in place of words, before or around them.

    With `probability`, one to four spans that correspond get a pair of marks around them, or a mark
    takes their place or goes before them. A pair may also be around the whole text, and a mark at
    its end. Their numbers rise in the source, as those of the pieces of a text do.
    """
    chosen = random.random(len(pairs)) < probability
    return [
        _with_marks(pair, random, links, symbols) if is_chosen else pair
        for pair, is_chosen in zip(pairs, chosen, strict=True)
    ]


def _with_marks(
    pair: tuple[str, str], random: np.random.Generator, links: WordLinks, symbols: MarkSymbols
) -> tuple[str, str]:
    if not (all(pair) and RESERVED.isdisjoint("".join(pair))):
        return pair
    tag = _TAG.match(pair[0])[0]  # stays in front
    pair = pair[0].removeprefix(tag), pair[1]
    whole = tuple((0, len(text)) for text in pair)
    spans = [
        found
        for found in links.spans(*pair, longest=int(random.integers(1, 5)))
        if not any(map(_is_in_markup, pair, found)) and found != whole
    ]
    count = min(len(spans), int(random.integers(1, 5)))
    chosen = np.sort(random.choice(len(spans), count, replace=False)) if count else []
    # Any mark may come first in half of the texts, so that the last ones are learned, too.
    first = random.random() if random.random() < 0.5 else 0.0
    plain, opening, closing = (iter(kind[int(first * len(kind)) :]) for kind in symbols)
    opening = (f"{mark} " for mark in opening)  # as `Marks.mark` has it
    around_all = (next(opening), next(closing)) if random.random() < 0.1 else ("", "")
    changes = []
    for index in chosen:
        draw = random.random()
        kinds = (opening, closing) if draw < 0.5 else (plain,)
        if all(found := [next(kind, "") for kind in kinds]):
            is_before = draw > 0.75  # its word is learned, too
            changes.append((spans[index], [f"{found[0]} ", ""] if is_before else found))
    at_end = f"{' ' * int(random.integers(2))}{next(plain, '')}" if random.random() < 0.1 else ""
    texts = []
    for side, text in enumerate(pair):
        for span, marks in sorted(changes, key=lambda change: -change[0][side][0]):
            begin, end = span[side]
            changed = text[begin:end].join(marks) if len(marks) > 1 else marks[0]
            text = text[:begin] + changed + text[end:]
        texts.append(text.join(around_all) + at_end)
    return tag + texts[0], texts[1]


def _is_in_markup(text: str, span: Span) -> bool:
    begin, end = span
    return not _NO_SPAN.isdisjoint(text[max(0, begin - 1) : begin] + text[end : end + 1])
