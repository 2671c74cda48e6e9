"""The results of a translator; importing them loads no TensorFlow, so a client uses them too."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# The score where a text has fewer hypotheses than asked for: below all others, and finite, since
# JSON has no infinity and servers write `-Infinity`, which clients refuse.
MISSING_SCORE = -1e9


class Translation(NamedTuple):
    """One translation of a text; of several sentences the numbers are sums.

    Attributes:
        text: The translation.
        score: `log_prob` over the length penalty.
        log_prob: Sum of the log-probabilities of its tokens and its end.
        length: Number of tokens.
        truncated: Whether the translation met its limit before it ended.
        source_truncated: Whether tokens of the source were dropped.
    """

    text: str
    score: float
    log_prob: float
    length: int
    truncated: bool
    source_truncated: bool


class TargetProbability(NamedTuple):
    """The probability of a given translation.

    Attributes:
        log_prob: Sum of the log-probabilities of its tokens, in the tokenizer's own segmentation,
            and its end.
        num_tokens: Number of these tokens, the end included.
        truncated: Whether tokens of source or target were dropped.
    """

    log_prob: float
    num_tokens: int
    truncated: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "TargetProbability":
        """Make one of what the signature `score` returns for a pair."""
        return cls(*(row[name] for name in cls._fields))


class AlignedPair(NamedTuple):
    """How much each token of a translation attends to each token of its source.

    Attributes:
        source_subwords: The S subwords of the source, its end last.
        target_subwords: The T subwords of the target, without an end.
        attention: float32 `(T, S)`; each row sums to 1.
        truncated: Whether tokens of source or target were dropped.
    """

    source_subwords: list[str]
    target_subwords: list[str]
    attention: np.ndarray
    truncated: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "AlignedPair":
        """Make one of what the signature `align` returns for a pair, without padding."""
        sources, targets = row["source_subwords"], row["target_subwords"]
        num_sources, num_targets = row["source_lengths"], row["target_lengths"]
        # Without any target there is no row that tells the number of columns.
        weights = np.array(row["attention"], np.float32).reshape(len(targets), len(sources))
        weights = weights[:num_targets, :num_sources]
        return cls(sources[:num_sources], targets[:num_targets], weights, row["truncated"])


def rows_of(outputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the outputs of a signature, by name, for each text of its batch."""
    rows = zip(*outputs.values(), strict=True)
    return [dict(zip(outputs, row, strict=True)) for row in rows]


def as_lists(array: np.ndarray) -> list:
    """Return an array as nested lists, in which bytes are text; matrices of numbers stay."""
    if array.dtype != object:
        return array.tolist() if array.ndim < 3 else list(array)
    decode = np.vectorize(lambda text: text.decode("utf-8", "replace"), otypes=[object])
    return decode(array).tolist()
