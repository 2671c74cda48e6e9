"""The results of a translator, for clients too: importing them does not load TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# The score of a hypothesis that was asked for but not found: below all others, and finite, because
# JSON has no infinity and clients refuse the `-Infinity` that servers write.
MISSING_SCORE = -1e9


class Translation(NamedTuple):
    """One translation of a text; the numbers are sums if the text has several sentences.

    Attributes:
        text: The translation.
        score: `log_prob` divided by the length penalty, see `beam_score`.
        log_prob: Sum of the log-probabilities of its tokens and its end.
        length: Number of tokens.
        truncated: Whether the translation reached its limit before an end token.
        source_truncated: Whether source tokens were dropped, or several lines searched as one.
        bytes_dropped: Whether the model wrote bytes that form no character; the text lacks them.
        flags: Names of what a person should look at, see `inference.flags.flags_of`.
        expected_chrf: The chrF that translations of this probability had on the validation text;
            None if the export did not measure it.

    Example:
        >>> [[best]] = translator.stream(["Good morning!"])
        >>> best.text == translator("Good morning!")
        True
    """

    text: str
    score: float
    log_prob: float
    length: int
    truncated: bool
    source_truncated: bool
    bytes_dropped: bool = False
    flags: tuple[str, ...] = ()
    expected_chrf: float | None = None


def joined(parts: Sequence[Translation], text: str) -> Translation:
    """Return the translation of a text that has several sentences."""
    if len(parts) == 1:
        return parts[0]._replace(text=text)
    sums = [sum(column) for column in zip(*(part[1:4] for part in parts), strict=True)]
    any_of = [any(column) for column in zip(*(part[4:7] for part in parts), strict=True)]
    flags = tuple(dict.fromkeys(flag for part in parts for flag in part.flags))
    if (chrf := parts[0].expected_chrf) is not None:
        chrf = sum(p.expected_chrf * (p.length + 1) for p in parts) / (sums[2] + len(parts))
    return Translation(text, *sums, *any_of, flags, chrf)


class TargetProbability(NamedTuple):
    """The probability of a given translation.

    Attributes:
        log_prob: Sum of the log-probabilities of the tokens, in the tokenizer's own segmentation,
            and of the end token.
        num_tokens: Number of these tokens, the end included.
        truncated: Whether tokens of source or target were dropped.
    """

    log_prob: float
    num_tokens: int
    truncated: bool


class AlignedPair(NamedTuple):
    """The attention of each token of a translation to each token of its source.

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
        """Make an instance, without padding, from the outputs of `align` for one pair."""
        sources, targets = row["source_subwords"], row["target_subwords"]
        num_sources, num_targets = row["source_lengths"], row["target_lengths"]
        # If the target has no tokens, no row shows the number of columns.
        weights = np.array(row["attention"], np.float32).reshape(len(targets), len(sources))
        weights = weights[:num_targets, :num_sources]
        return cls(sources[:num_sources], targets[:num_targets], weights, row["truncated"])


def rows_of(outputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the outputs of a signature as a dict by name for each text of the batch."""
    rows = zip(*outputs.values(), strict=True)
    return [dict(zip(outputs, row, strict=True)) for row in rows]


def as_lists(array: np.ndarray) -> list:
    """Return an array as nested lists, with bytes decoded; matrices of numbers stay arrays."""
    if array.dtype != object:
        return array.tolist() if array.ndim < 3 else list(array)
    return _decode(array).tolist()


_decode = np.frompyfunc(lambda text: text.decode("utf-8", "replace"), 1, 1)
