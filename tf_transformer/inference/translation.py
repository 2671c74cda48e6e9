"""A translation as a Python object, made of the tensors of a search."""

import collections
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tf_transformer.inference.document import between
from tf_transformer.inference.sentences import parts_of

# The score where a text has fewer hypotheses than asked for: below all others, and finite, since
# JSON has no infinity and servers write `-Infinity`, which clients refuse.
MISSING_SCORE = -1e9
_TEXTS_SPLIT_TOGETHER = 256


class Translation(NamedTuple):
    """One translation of a text; of several sentences the numbers are sums.

    Attributes:
        text: The translation.
        score: `log_prob` over the length penalty.
        log_prob: Sum of the log-probabilities of its tokens and its end.
        length: Tokens.
        truncated: Whether the translation met its limit before it ended.
        source_truncated: Whether the source was too long and its end dropped.
    """

    text: str
    score: float
    log_prob: float
    length: int
    truncated: bool
    source_truncated: bool

    @classmethod
    def of_batch(cls, found: Mapping[str, Any]) -> list[list["Translation"]]:
        """The translations of each text, best first.

        Args:
            found: The tensors that a search of `ExportTranslator` returns.

        Raises:
            ValueError: A text has none, because the logits are not finite.
        """
        found = {name: tensor.numpy().tolist() for name, tensor in found.items()}
        columns = ("translations", "scores", "log_probs", "lengths", "truncated")
        rows = zip(*(found[name] for name in columns), strict=True)
        translations = [
            [
                cls(text.decode("utf-8"), score, *others, source_truncated)
                for text, score, *others in zip(*row, strict=True)
                if score > MISSING_SCORE
            ]
            for row, source_truncated in zip(rows, found["source_truncated"], strict=True)
        ]
        if not all(translations):
            raise ValueError("the model's logits are not finite, so its weights are not either.")
        return translations


def in_sentences(
    texts: Iterator[str],
    translate: Callable[[Iterator[str]], Iterator[list[Translation]]],
    within_lines: bool = True,
) -> Iterator[list[Translation]]:
    """Translates texts sentence by sentence.

    Args:
        texts: The texts, some of which are read ahead.
        translate: Translates any number of sentences, one translation of each.
        within_lines: As in `split_lines`.
    """
    layouts: collections.deque = collections.deque()

    def sentences():
        while group := list(itertools.islice(texts, _TEXTS_SPLIT_TOGETHER)):
            for parts in parts_of(group, within_lines):
                layouts.append([space for _, space in parts])
                yield from (sentence for sentence, _ in parts)

    found = (best for (best,) in translate(sentences()))
    for first in found:
        *spaces, end = layouts.popleft()
        parts = [first, *itertools.islice(found, len(spaces))]
        pairs = zip(parts, spaces, strict=False)
        spaces = [space or between(part.text, "").numpy().decode() for part, space in pairs]
        text = "".join(part.text + space for part, space in zip(parts, [*spaces, end], strict=True))
        _, *numbers = zip(*parts, strict=True)
        score, log_prob, length, *truncated = map(sum, numbers)
        yield [Translation(text, score, log_prob, length, *map(bool, truncated))]
