"""The output layer: logits, or the statistics of labels that a loss and its metrics need.

The statistics of a token are three numbers, `(B, T, 3)` for a batch: the log-probability of the
label, the mean log-probability of all other tokens except padding, and 1 where no logit is higher
than the label's, else 0. A smoothed cross-entropy is a weighted sum of the first two, so neither
the smoothed target nor the softmax is ever stored. (A vocabulary of two tokens has no others, and
the second number is minus the log-sum-exp.)
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_transformer.layers.base import Int, Layer, Shape, Tensor, built, on_rows
from tf_transformer.layers.norm import layer_norm

# 16 MiB. Four times this size was 1.15 times as fast for V = 32,000, and no faster for V = 8,000.
LOGITS_AT_ONCE = 2**22


@keras.saving.register_keras_serializable(package="tf_transformer")
class OutputTransform(Layer):
    """A layer with an activation, and a norm, before the output matrix (Devlin et al. 2019).

    Args: as in `TransformerLayer`.

    Maps a float tensor `(..., D)` to one of the same shape.
    """

    def __init__(
        self,
        d_model: int,
        activation: Callable[[Tensor], Tensor] | str = "relu",
        layer_norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.d_model, self.activation = d_model, activation
        self.layer_norm_epsilon, dtype = layer_norm_epsilon, self.dtype_policy
        self.dense = keras.layers.Dense(d_model, activation, dtype=dtype, name="dense")
        self.norm = layer_norm(dtype, layer_norm_epsilon)

    def build(self, hidden_shape: Shape) -> None:
        self.dense.build((None, self.d_model))
        self.norm.build((None, None, self.d_model))

    def call(self, hidden: Tensor) -> Tensor:
        return self.norm(on_rows(self.dense, hidden))


@keras.saving.register_keras_serializable(package="tf_transformer")
class OutputProjection(Layer):
    """Projection of hidden states to a logit for each token of the vocabulary.

    Always computes in float32; the dtype policy sets only the dtype of the weights.

    Args:
        vocab_size: V.
        pad_id: the id of padding in `labels`.
        embedding: `keras.layers.Embedding` of V rows whose transposed matrix projects (Press &
            Wolf 2016); None for a separate kernel `(D, V)` and bias `(V,)`. The embedding may be
            quantized.
        tied_bias: whether there is a bias `(V,)` with `embedding`, too.
        transform: a layer that hidden states pass before the projection, such as an
            `OutputTransform`; None for none.

    Call arguments:
        hidden: float tensor `(..., D)`; `(B, T, D)` with `labels`.
        labels: int tensor `(B, T)`, or None.

    Returns:
        logits, float32 `(..., V)`; with `labels` the statistics of the labels, float32
        `(B, T, 3)`, computed with only a part of the logits in memory at a time.
    """

    def __init__(
        self,
        vocab_size: int,
        pad_id: int = 0,
        embedding: keras.layers.Embedding | None = None,
        tied_bias: bool = False,
        transform: keras.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.vocab_size, self.pad_id, self.embedding = vocab_size, pad_id, embedding
        self.tied_bias, self.transform = tied_bias, transform
        self.bias = None

    def build(self, hidden_shape: Shape) -> None:
        shape = (hidden_shape[-1], self.vocab_size)
        if self.transform is not None:
            built(self.transform, hidden_shape)
        if self.embedding is not None:
            built(self.embedding, (None, None))
        else:
            self.kernel = self.add_weight(shape, "glorot_uniform", name="kernel")
        if self.embedding is None or self.tied_bias:
            self.bias = self.add_weight(shape[1:], "zeros", name="bias")

    def call(self, hidden: Tensor, labels: Tensor | None = None) -> Tensor:
        hidden, (kernel, bias) = self._transformed(hidden), self.kernel_and_bias()
        if labels is not None:
            return projected_token_statistics(labels, hidden, kernel, bias, self.pad_id)
        logits = ops.matmul(ops.cast(hidden, "float32"), kernel)
        return logits if bias is None else logits + bias

    def _transformed(self, hidden: Tensor) -> Tensor:
        return hidden if self.transform is None else self.transform(hidden)

    def kernel_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """Return the kernel `(D, V)` and the bias `(V,)` or None, float32."""
        bias = None if self.bias is None else ops.cast(self.bias, "float32")
        if self.embedding is None:
            return ops.cast(self.kernel, "float32"), bias
        if self.embedding.quantization_mode is None:
            matrix = self.embedding.embeddings
        else:  # looking up every token dequantizes the matrix
            matrix = self.embedding(ops.arange(self.vocab_size))
        return ops.transpose(ops.cast(matrix, "float32")), bias

    def start_decoding(self, num_steps: Int | None = None) -> dict[str, Tensor]:
        """Return a cache's constants: a tied matrix, transposed once, as XLA does by itself."""
        if self.embedding is None or num_steps is not None:
            return {}
        return {"output_kernel": self.kernel_and_bias()[0]}

    def decode_step(self, hidden: Tensor, constants: dict[str, Tensor]) -> Tensor:
        """Return the logits `(N, V)` of hidden states `(N, D)`, given a cache's constants."""
        if "output_kernel" not in constants:
            return self(hidden)
        hidden = ops.cast(self._transformed(hidden), "float32")
        logits = ops.matmul(hidden, constants["output_kernel"])
        return logits if self.bias is None else logits + ops.cast(self.bias, "float32")


def token_statistics(labels: Tensor, logits: Tensor, pad_id: int) -> Tensor:
    """Return the statistics of labels, given logits.

    If `p` is the softmax, the gradient of the first statistic is `[label] - p`, and that of the
    second is `[neither label nor padding] / (V - 2) - p`. Both reuse the exponentials of the
    forward pass, so that the largest tensor of the model is read only a few times.

    Takes int labels `(B, T)` and float logits `(B, T, V)`; returns float32 `(B, T, 3)`. Where the
    label is `pad_id`, statistics and gradients are 0.
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
    """Return the statistics of labels for the logits `hidden @ kernel + bias`, part by part.

    Statistics and gradients equal those of `token_statistics`, without all logits in memory. Logits
    are recomputed for the gradient (Chen et al. 2016), so that the product and its gradients take
    1.4 to 1.6 times as long.

    Takes labels `(B, T)`, hidden states `(B, T, D)`, a kernel `(D, V)` and a bias `(V,)` or None.
    At most `logits_at_once` logits are in memory at a time, but always at least one token's.
    """
    hidden, kernel = ops.cast(hidden, "float32"), ops.cast(kernel, "float32")
    if bias is not None:  # as the weights of a feature that is always 1
        hidden = ops.concatenate([hidden, ops.ones_like(hidden[..., :1])], axis=-1)
        kernel = ops.concatenate([kernel, ops.cast(bias, "float32")[None]])
    num_features, vocab_size = kernel.shape
    num_tokens = ops.shape(labels)[0] * ops.shape(labels)[1]
    num_parts = num_tokens // max(logits_at_once // vocab_size, 1) + 1
    part_size = num_tokens // num_parts + 1  # at least 1, even if a replica has no sentence

    def parts(rows):
        """Pad rows `(B * T, E)` at the end, and split them into parts `(parts, size, E)`."""
        rows = ops.pad(rows, [(0, num_parts * part_size - num_tokens), (0, 0)])
        return ops.reshape(rows, (num_parts, part_size, rows.shape[1]))

    def loop(step, table, *others):
        """Replace each part `(size, E)` of a table by the result of a step.

        Each round reads its part from the table that the previous round wrote, so it waits for that
        round. A loop may run independent rounds in parallel, with all their logits in memory.
        """

        def replace(index, carry):
            part, *others = step(carry[0][index], labels_of[index][:, 0], index, *carry[1:])
            table = ops.scatter_update(carry[0], ops.reshape(index, (1, 1)), part[None])
            return table, *others

        table, *others = ops.fori_loop(0, num_parts, replace, (parts(table), *others))
        return ops.reshape(table, (-1, table.shape[-1]))[:num_tokens], *others

    labels_of = parts(ops.reshape(labels, (-1, 1)))

    @ops.custom_gradient
    def statistics_of(hidden, kernel):
        def add_statistics(part, labels, index):
            hidden = part[:, :num_features]
            statistics, _ = _statistics(labels, ops.matmul(hidden, kernel), pad_id)
            return (ops.concatenate([hidden, statistics], axis=-1),)

        (table,) = loop(add_statistics, ops.pad(hidden, [(0, 0), (0, 3)]))

        def gradient(*args, upstream=None):
            upstreams = parts(args[0] if upstream is None else upstream)
            embeddings = ops.transpose(kernel)

            def to_gradients(hidden, labels, index, kernel_gradient):
                _, softmax = _statistics(labels, ops.matmul(hidden, kernel), pad_id)
                slopes = _slopes(labels, *softmax, upstreams[index], pad_id)
                kernel_gradient += ops.matmul(ops.transpose(hidden), slopes)
                return ops.matmul(slopes, embeddings), kernel_gradient

            return loop(to_gradients, hidden, ops.zeros_like(kernel))

        return table[:, num_features:], gradient

    statistics = statistics_of(ops.reshape(hidden, (-1, num_features)), kernel)
    return ops.reshape(statistics, (*ops.shape(labels), 3))


def _statistics(labels, logits, pad_id):
    """Return the statistics `(R, 3)` of labels `(R,)`, and the parts of the softmax of the logits.

    The parts are the exponentials `(R, V)` and their totals `(R, 1)`.
    """
    # Run eagerly without an initial value, Keras raises an error if the batch has no tokens.
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
    """Return the gradient of the logits, `(R, V)`, given that of their statistics, `(R, 3)`."""
    upstream = upstream * _is_real(labels, pad_id)
    of_label, of_others = upstream[:, 0], upstream[:, 1]
    both = (of_label + of_others) / totals[:, 0]
    slopes = (of_others / _num_others(exponentials))[:, None] - exponentials * both[:, None]
    # One scatter writes both exceptions: every scatter copies the model's largest tensor.
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
