"""The statistics of labels, which a loss and its metrics are computed from.

The statistics of a token are three numbers, `(B, T, 3)` for a batch: the log-probability of the
label, the mean log-probability of all other tokens except padding, and 1 where no logit is higher
than the label's, else 0. A smoothed cross-entropy is a weighted sum of the first two, so the
smoothed target is never stored. (A vocabulary of two tokens has no others, and the second number is
minus the log-sum-exp.)
"""

import math
from collections.abc import Callable
from typing import Any

from keras import ops


def token_statistics(labels: Any, logits: Any, pad_id: int) -> Any:
    """Return the statistics of labels, given logits.

    If `p` is the softmax, the gradient of the first statistic is `[label] - p`, and that of the
    second is `[neither label nor padding] / (V - 2) - p`. Both reuse the softmax of the forward
    pass, so that the largest tensor of the model is read only a few times.

    Takes int labels `(B, T)` and float logits `(B, T, V)`; returns float32 `(B, T, 3)`. Where the
    label is `pad_id`, statistics and gradients are 0. Where it is no id, the statistics are NaN, if
    the backend does not raise an error.

    Raises:
        ValueError: The shapes do not match, for example because the logits are time-major, or
            `pad_id` is no id.
    """
    if not 0 <= pad_id < logits.shape[-1]:
        raise ValueError(f"pad_id must be from 0 to {logits.shape[-1] - 1}; received {pad_id}.")
    sizes = zip(labels.shape, logits.shape[:-1], strict=False)
    if any(None not in pair and len({*pair}) == 2 for pair in sizes):
        raise ValueError(f"labels {tuple(labels.shape)} do not fit {tuple(logits.shape)}.")
    flat_labels = ops.reshape(labels, (-1,))

    @ops.custom_gradient
    def statistics_of(flat_logits: Any) -> tuple[Any, Callable]:
        statistics, softmax = _statistics(flat_labels, flat_logits, pad_id)

        def gradient(*args: Any, upstream: Any = None) -> Any:
            upstream = args[0] if upstream is None else upstream
            return _slopes(flat_labels, softmax, upstream, pad_id)

        return statistics, gradient

    flat_logits = ops.reshape(ops.cast(logits, "float32"), (-1, logits.shape[-1]))
    return ops.reshape(statistics_of(flat_logits), (*ops.shape(labels), 3))


def _statistics(labels: Any, logits: Any, pad_id: int) -> tuple[Any, Any]:
    """Return the statistics `(R, 3)` of labels `(R,)`, and the softmax of the logits `(R, V)`."""
    # oneDNN's softmax takes a quarter of the time of the exponentials alone.
    softmax = ops.softmax(logits, axis=-1)
    # Run eagerly without an initial value, Keras raises an error if the batch has no tokens.
    largest = ops.max(logits, axis=-1, initial=-math.inf)
    lse = largest - ops.log(ops.max(softmax, axis=-1, initial=0.0))
    of_label = ops.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    of_others = (ops.sum(logits, axis=-1) - of_label - logits[:, pad_id]) / _num_others(logits)
    is_largest = ops.cast(of_label >= largest, "float32")
    statistics = ops.stack([of_label - lse, of_others - lse, is_largest], axis=-1)
    # Without this, some backends would take the last token for one that is below 0, for example.
    is_known = (labels >= 0) & (labels < logits.shape[-1])
    statistics = ops.where(is_known[:, None], statistics, math.nan)
    return ops.where(labels[:, None] == pad_id, 0.0, statistics), softmax


def _slopes(labels: Any, softmax: Any, upstream: Any, pad_id: int) -> Any:
    """Return the gradient of the logits, `(R, V)`, given that of their statistics, `(R, 3)`."""
    upstream = ops.where(labels[:, None] == pad_id, 0.0, upstream)
    of_label, of_others = upstream[:, 0], upstream[:, 1]
    both = of_label + of_others
    slopes = (of_others / _num_others(softmax))[:, None] - softmax * both[:, None]
    # One scatter writes both exceptions: every scatter copies the model's largest tensor.
    rows = ops.arange(ops.shape(labels)[0])
    ids = ops.stack([ops.cast(labels, rows.dtype), ops.full_like(rows, pad_id)], axis=1)
    indices = ops.stack([ops.repeat(rows, 2), ops.reshape(ids, (-1,))], axis=1)
    terms = ops.stack([of_label, ops.zeros_like(of_label)], axis=1)
    values = ops.reshape(terms - ops.take_along_axis(softmax, ids, axis=1) * both[:, None], (-1,))
    return ops.scatter_update(slopes, indices, values)


def _num_others(logits: Any) -> int:
    return max(logits.shape[-1] - 2, 1)
