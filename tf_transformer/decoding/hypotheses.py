"""The result of a search, beam scores, and the limits of translations."""

from typing import NamedTuple

import tensorflow as tf


class Hypotheses(NamedTuple):
    """The n best translations of each sentence, best first.

    Hypotheses that reached their limit before an end token are truncated; they rank after all
    that ended. A missing hypothesis, where a sentence has fewer than n, has the score and the
    log-probability minus infinity, length 0 and padding ids.

    Attributes:
        ids: int32 `(B, n, T)`, without begin and end tokens, padded after the end.
        lengths: int32 `(B, n)`, tokens before the end.
        log_probs: float32 `(B, n)`, sum of the log-probabilities of the tokens and, where the
            hypothesis ended, of the end token.
        scores: float32 `(B, n)`, see `beam_score`.
        truncated: bool `(B, n)`.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    log_probs: tf.Tensor
    scores: tf.Tensor
    truncated: tf.Tensor


def output_limits(
    source_lengths: tf.Tensor, max_length: int, max_length_ratio: float = 2.0
) -> tf.Tensor:
    """The most tokens that each translation may have.

    It is `min(max_length_ratio * source_length + 10, max_length)`, which depends on the length of
    the sentence only, not on the batch.

    Args:
        source_lengths: int32 `(B,)`, tokens of each source.
        max_length: the limit of every translation.
        max_length_ratio: target tokens for each source token.

    Returns:
        int32 `(B,)`.
    """
    limits = max_length_ratio * tf.cast(source_lengths, tf.float32) + 10
    return tf.minimum(tf.cast(limits, tf.int32), max_length)


def beam_score(
    log_probs: tf.Tensor, lengths: tf.Tensor | int, length_penalty: tf.Tensor | float
) -> tf.Tensor:
    """The score of hypotheses: `log_probs / ((5 + lengths) / 6) ** length_penalty`.

    Wu et al. 2016, section 7, without the coverage penalty.

    Args:
        log_probs: float32 tensor.
        lengths: int tensor that broadcasts to `log_probs`, the number of factors of each
            probability: the tokens, and the end token where the hypothesis ended.
        length_penalty: float or float scalar tensor, not negative; 0 compares log-probabilities,
            1 nearly their means.

    Returns:
        float32 tensor of the same shape.
    """
    return log_probs / length_normalizer(lengths, length_penalty)


def length_normalizer(lengths: tf.Tensor | int, length_penalty: tf.Tensor | float) -> tf.Tensor:
    """The divisor of `beam_score`, float32 of the shape of `lengths`."""
    return ((5.0 + tf.cast(lengths, tf.float32)) / 6.0) ** length_penalty
