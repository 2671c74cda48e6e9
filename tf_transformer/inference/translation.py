"""A translation as a Python object, made of the tensors of a search."""

from collections.abc import Mapping
from typing import Any, NamedTuple

# The score where a text has fewer hypotheses than asked for: below all others, and finite, since
# JSON has no infinity and servers write `-Infinity`, which clients refuse.
MISSING_SCORE = -1e9


class Translation(NamedTuple):
    """One translation of a text.

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
