"""Statistics of labels: what a loss and its metrics need of the logits.

The statistics of a token are three numbers, `(B, T, 3)` for a batch: the log-probability of the
label, the mean log-probability of all other tokens except padding, and 1 where no logit is higher
than the label's, else 0. A smoothed cross-entropy is a weighted sum of the first two, so neither
the smoothed target nor the softmax is ever stored. (A vocabulary of two has no other tokens; the
second number is then minus the log-sum-exp.)
"""

import math

from keras import ops

from tf_transformer.layers.base import Tensor

# 16 MiB; four times as many were 1.15 times as fast for V = 32,000, and no faster for V = 8,000.
LOGITS_AT_ONCE = 2**22


def token_statistics(labels: Tensor, logits: Tensor, pad_id: int) -> Tensor:
    """Returns the statistics of labels, given logits.

    With `p` the softmax, the gradients are `[label] - p` of the first score and
    `[neither label nor padding] / (V - 2) - p` of the second. Both reuse the exponentials of the
    forward pass, so that the largest tensor of the model is read only a few times.

    Args:
        labels: int tensor `(B, T)`.
        logits: float tensor `(B, T, V)`.
        pad_id: the id of padding; statistics and gradients of this label are 0.

    Returns:
        float32 tensor `(B, T, 3)`.
    """
    flat_labels = ops.reshape(labels, (-1,))

    @ops.custom_gradient
    def statistics_of(flat_logits):
        statistics, softmax = _statistics(flat_labels, flat_logits, pad_id)

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            return _slopes(flat_labels, *softmax, upstream, pad_id)

        return statistics, gradient

    flat_logits = ops.reshape(ops.cast(logits, "float32"), (-1, logits.shape[-1]))
    return ops.reshape(statistics_of(flat_logits), (*ops.shape(labels), 3))


def projected_token_statistics(
    labels: Tensor,
    hidden: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    pad_id: int,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> Tensor:
    """Returns the statistics of labels for the logits `hidden @ kernel + bias`, chunk by chunk.

    Statistics and gradients equal those of `token_statistics`, without all logits in memory. Logits
    are recomputed for the gradient (Chen et al. 2016), so that this product and its gradients take
    1.4 to 1.6 times as long.

    Args:
        labels: int tensor `(B, T)`.
        hidden: float tensor `(B, T, D)`.
        kernel: float tensor `(D, V)`.
        bias: float tensor `(V,)`, or None.
        pad_id: the id of padding; statistics and gradients of this label are 0.
        logits_at_once: the maximum number of logits in memory; at least those of one token.

    Returns:
        float32 tensor `(B, T, 3)`.
    """
    hidden, kernel = ops.cast(hidden, "float32"), ops.cast(kernel, "float32")
    if bias is not None:  # the weights of a feature that is always 1
        hidden = ops.concatenate([hidden, ops.ones_like(hidden[..., :1])], axis=-1)
        kernel = ops.concatenate([kernel, ops.cast(bias, "float32")[None]])
    num_features, vocab_size = kernel.shape
    num_tokens = ops.shape(labels)[0] * ops.shape(labels)[1]
    num_parts = num_tokens // max(logits_at_once // vocab_size, 1) + 1
    part_size = num_tokens // num_parts + 1  # not empty even where a replica got no sentence
    missing = num_parts * part_size - num_tokens

    def parts(rows):
        """Rows `(B * T, …)` in parts of one size, the last filled up: `(parts, size, …)`."""
        rows = ops.pad(rows, [(0, missing), *[(0, 0)] * (len(rows.shape) - 1)])
        return ops.reshape(rows, (num_parts, part_size, *rows.shape[1:]))

    def rows(parts):
        return ops.reshape(parts, (-1, parts.shape[-1]))[:num_tokens]

    labels_of = parts(ops.reshape(labels, (-1,)))

    @ops.custom_gradient
    def statistics_of(hidden, kernel):
        # Each part is read from the table into which the one before was written, so that it waits
        # for it; a loop is free to run its rounds side by side, with all their logits in memory.
        def add_statistics(index, table):
            hidden = table[index][:, :num_features]
            statistics, _ = _statistics(labels_of[index], ops.matmul(hidden, kernel), pad_id)
            return _replace(table, index, ops.concatenate([hidden, statistics], axis=-1))

        table = parts(ops.pad(hidden, [(0, 0), (0, 3)]))
        statistics = rows(ops.fori_loop(0, num_parts, add_statistics, table))[:, num_features:]

        def gradient(*args, upstream=None):
            upstreams = parts(args[0] if upstream is None else upstream)
            embeddings = ops.transpose(kernel)

            def add_gradients(index, carry):
                table, kernel_gradient = carry
                hidden, labels = table[index], labels_of[index]
                _, softmax = _statistics(labels, ops.matmul(hidden, kernel), pad_id)
                slopes = _slopes(labels, *softmax, upstreams[index], pad_id)
                kernel_gradient += ops.matmul(ops.transpose(hidden), slopes)
                return _replace(table, index, ops.matmul(slopes, embeddings)), kernel_gradient

            carry = parts(hidden), ops.zeros_like(kernel)
            table, kernel_gradient = ops.fori_loop(0, num_parts, add_gradients, carry)
            return rows(table), kernel_gradient

        return statistics, gradient

    statistics = statistics_of(ops.reshape(hidden, (-1, num_features)), kernel)
    return ops.reshape(statistics, (*ops.shape(labels), 3))


def _replace(table, index, part):
    return ops.scatter_update(table, ops.reshape(index, (1, 1)), part[None])


def _statistics(labels, logits, pad_id):
    """The statistics `(R, 3)` of labels `(R,)` and logits `(R, V)`, and the parts of their softmax:
    the exponentials `(R, V)` and their totals `(R, 1)`.
    """
    # Without an initial value Keras refuses a batch without a token.
    largest = ops.max(logits, axis=-1, keepdims=True, initial=-math.inf)
    exponentials = ops.exp(logits - largest)
    totals = ops.sum(exponentials, axis=-1, keepdims=True)
    lse = (largest + ops.log(totals))[:, 0]
    of_label = ops.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    of_others = (ops.sum(logits, axis=-1) - of_label - logits[:, pad_id]) / _num_others(logits)
    is_largest = ops.cast(of_label >= largest[:, 0], "float32")
    statistics = ops.stack([of_label - lse, of_others - lse, is_largest], axis=-1)
    return statistics * _is_real(labels, pad_id), (exponentials, totals)


def _slopes(labels, exponentials, totals, upstream, pad_id):
    """The gradient of the logits, `(R, V)`, given that of their statistics, `(R, 3)`."""
    upstream = upstream * _is_real(labels, pad_id)
    of_label, of_others = upstream[:, 0], upstream[:, 1]
    both = (of_label + of_others) / totals[:, 0]
    slopes = (of_others / _num_others(exponentials))[:, None] - exponentials * both[:, None]
    # One scatter of both exceptions, for each copies the largest tensor there is.
    rows = ops.arange(ops.shape(labels)[0])
    ids = ops.stack([ops.cast(labels, rows.dtype), ops.full_like(rows, pad_id)], axis=1)
    indices = ops.stack([ops.repeat(rows, 2), ops.reshape(ids, (-1,))], axis=1)
    terms = ops.stack([of_label, ops.zeros_like(of_label)], axis=1)
    softmax = ops.take_along_axis(exponentials, ids, axis=1)
    values = ops.reshape(terms - softmax * both[:, None], (-1,))
    return ops.scatter_update(slopes, indices, values)


def _num_others(logits):
    return max(logits.shape[-1] - 2, 1)


def _is_real(labels, pad_id):
    return ops.cast(ops.not_equal(labels, pad_id), "float32")[:, None]
