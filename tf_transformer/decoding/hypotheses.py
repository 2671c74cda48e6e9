"""What a search returns, and how long a translation may become."""

from typing import NamedTuple

import tensorflow as tf


class Hypotheses(NamedTuple):
    """Translations as ids, one a row.

    Attributes:
        ids: int32 `(N, T)`, without begin and end ids, padded after the end.
        lengths: int32 `(N,)`, ids before the end.
        log_probs: float32 `(N,)`, sum of the log-probabilities of the ids and, where the row
            ended by itself, of the end id.
        truncated: bool `(N,)`, whether the row met its limit before an end id.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    log_probs: tf.Tensor
    truncated: tf.Tensor


class RankedHypotheses(NamedTuple):
    """The best translations of each sentence, best first.

    Attributes:
        ids: int32 `(B, n, T)`, without begin and end ids, padded after the end.
        lengths: int32 `(B, n)`, ids before the end.
        log_probs: float32 `(B, n)`, as in `Hypotheses`.
        scores: float32 `(B, n)`, `log_probs` over the length penalty. Hypotheses that were cut
            off stand behind all that ended. Minus infinity where there is no hypothesis.
        truncated: bool `(B, n)`, whether the hypothesis met its limit before an end id.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    log_probs: tf.Tensor
    scores: tf.Tensor
    truncated: tf.Tensor


def output_limits(source_lengths, max_length):
    """How many ids each translation may have: twice its own source and ten, never the batch's.

    Args:
        source_lengths: int32 `(B,)`.
        max_length: int, the limit of all limits.

    Returns:
        int32 `(B,)`.
    """
    return tf.minimum(2 * source_lengths + 10, max_length)
