"""The results of a translator; importing them loads no TensorFlow, so a client uses them too."""

from typing import NamedTuple

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
