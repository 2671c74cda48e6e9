"""The result of a search: hypotheses and their ids, scores and limits."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Hypotheses(NamedTuple):
    """The n best translations of each sentence, best first.

    Hypotheses that reached their limit before an end token are truncated and rank after those that
    ended. If a sentence has fewer than n hypotheses, each missing one has a score and a
    log-probability of minus infinity, length 0 and padding ids.

    Attributes:
        ids: int32 `(B, n, T)`, without begin and end tokens, padded after the end.
        lengths: int32 `(B, n)`, tokens before the end.
        log_probs: float32 `(B, n)`, sum of the log-probabilities of the tokens and, where the
            hypothesis ended, of the end token.
        scores: float32 `(B, n)`, see `beam_score`.
        truncated: bool `(B, n)`.

    Example:
        >>> ids = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
        >>> cache = model.start_decoding(tf.constant([[7, 8, tokenizer.eos_id]]))
        >>> found = tt.beam_search(model.decode_step, cache, [5], beam_size=4, n_best=2, **ids)
        >>> found.scores.shape, bool(found.scores[0, 0] >= found.scores[0, 1])
        (TensorShape([1, 2]), True)
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    log_probs: tf.Tensor
    scores: tf.Tensor
    truncated: tf.Tensor


def replace_rows(old: Hypotheses, rows: tf.Tensor, new: Hypotheses, pad_id: int) -> Hypotheses:
    """Return hypotheses in which those of some sentences, with indices `(R, 1)`, are new."""
    size = tf.maximum(tf.shape(old.ids)[2], tf.shape(new.ids)[2])

    def widened(ids: tf.Tensor) -> tf.Tensor:
        paddings = [[0, 0], [0, 0], [0, size - tf.shape(ids)[2]]]
        return tf.pad(ids, paddings, constant_values=pad_id)

    old, new = (found._replace(ids=widened(found.ids)) for found in (old, new))
    fields = zip(old, new, strict=True)
    return Hypotheses(
        *(tf.tensor_scatter_nd_update(before, rows, after) for before, after in fields)
    )


def beam_score(
    log_probs: tf.Tensor, lengths: tf.Tensor | int, length_penalty: tf.Tensor | float
) -> tf.Tensor:
    """Return the score of hypotheses: `log_probs / ((5 + lengths) / 6) ** length_penalty`.

    Wu et al. 2016, section 7, without the coverage penalty. Lengths count the end token if the
    hypothesis ended. A penalty of 0 compares log-probabilities, 1 roughly their means.
    """
    return log_probs / length_normalizer(lengths, length_penalty)


def length_normalizer(lengths: tf.Tensor | int, length_penalty: tf.Tensor | float) -> tf.Tensor:
    """Return the divisor of `beam_score`, float32 of the shape of `lengths`."""
    return ((5.0 + tf.cast(lengths, tf.float32)) / 6.0) ** length_penalty


def require_possible(
    limits: tf.Tensor,
    length_penalty: float | tf.Tensor,
    n_best: int | tf.Tensor = 1,
    beam_size: int | tf.Tensor = 1,
) -> None:
    """Raise a `ValueError` if statically known values would make a search silently wrong."""
    limits, length_penalty, n_best, beam_size = map(
        tf.get_static_value, (limits, length_penalty, n_best, beam_size)
    )
    if limits is not None and (np.ndim(limits) != 1 or np.any(limits < 0)):
        raise ValueError(f"limits must have a number from 0 for each sentence; received {limits}.")
    if length_penalty is not None and not 0 <= length_penalty <= 10:
        raise ValueError(f"length_penalty must be from 0 to 10; received {length_penalty}.")
    if n_best is not None and beam_size is not None and not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best must be from 1 to beam_size={beam_size}; received {n_best}.")
