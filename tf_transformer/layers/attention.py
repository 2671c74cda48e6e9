"""Multi-head attention, and the three places a Transformer uses it."""

import math

import keras
from keras import ops

from tf_transformer.layers.masks import causal_mask


def _attention_bias(mask, dtype):
    """0 where `mask` is true, a large negative number that fits `dtype` where it is not.

    The number is finite: a query with nothing to attend to attends to everything a little, where
    minus infinity would give NaN and lose the whole batch.
    """
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e9
    return (1.0 - ops.cast(mask, dtype)) * ops.cast(lowest, dtype)


@keras.saving.register_keras_serializable(package="tf_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Scaled dot-product attention in several heads (Vaswani et al. 2017, section 3.2).

    `softmax(Q K^T / sqrt(d_k)) V` in each of `num_heads` subspaces of size
    `d_k = d_model / num_heads`, then one projection over the joined heads. The query, key and
    value projections are one matrix of `3 * d_model` columns: three products become one where
    query and context are the same.

    Args:
        num_heads: int, H.
        d_model: int, D, a multiple of `num_heads`.
        dropout_rate: float in [0, 1), dropout of the attention weights.

    Call arguments:
        query: tensor `(B, T, D)`.
        context: tensor `(B, S, D)`.
        attention_mask: bool tensor that broadcasts to `(B, T, S)`, True where attending is
            allowed, or None for everywhere.
        training: bool, whether dropout is applied.
        return_attention_scores: bool, whether to return the attention weights too.

    Returns:
        tensor `(B, T, D)`; with `return_attention_scores` also the weights `(B, H, T, S)`.

    Raises:
        ValueError: if `d_model` is not a multiple of `num_heads`.
    """

    def __init__(
        self, num_heads, d_model, dropout_rate=0.0, *, name=None, trainable=True, dtype=None
    ):
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        if num_heads <= 0 or d_model % num_heads:
            raise ValueError(
                f"d_model must be a multiple of num_heads; received d_model={d_model}, "
                f"num_heads={num_heads}. Change one of them."
            )
        self.num_heads = num_heads
        self.d_model = d_model
        self.dropout_rate = dropout_rate
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)
        self.output_projection = keras.layers.Dense(
            d_model, dtype=self.dtype_policy, name="output_projection"
        )

    def build(self, *_):
        # Glorot's limit for one of the three square parts, not for the joined matrix.
        limit = math.sqrt(3.0 / self.d_model)
        self.kernel = self.add_weight(
            name="query_key_value_kernel",
            shape=(self.d_model, 3 * self.d_model),
            initializer=keras.initializers.RandomUniform(-limit, limit),
        )
        self.bias = self.add_weight(
            name="query_key_value_bias", shape=(3 * self.d_model,), initializer="zeros"
        )
        self.output_projection.build((None, None, self.d_model))
        self.built = True

    def call(
        self, query, context, attention_mask=None, training=None, return_attention_scores=False
    ):
        (queries,) = self._project(query, 0, 1)
        keys, values = self._project(context, 1, 3)
        output, weights = self._attend(queries, keys, values, attention_mask, training)
        return (output, weights) if return_attention_scores else output

    def _project(self, x, first, last):
        """Projects `(B, T, D)` to parts `first … last - 1` of (query, key, value).

        Returns:
            list of tensors `(B, H, T, d_k)`.
        """
        columns = slice(first * self.d_model, last * self.d_model)
        projected = ops.matmul(x, self.kernel[:, columns]) + self.bias[columns]
        head_shape = (-1, ops.shape(x)[1], self.num_heads, self.d_model // self.num_heads)
        return [
            ops.transpose(ops.reshape(part, head_shape), (0, 2, 1, 3))
            for part in ops.split(projected, last - first, axis=-1)
        ]

    def _attend(self, queries, keys, values, mask, training):
        """Attention of `(B, H, T, d_k)` over `(B, H, S, d_k)`.

        Returns:
            output `(B, T, D)`, attention weights `(B, H, T, S)`.
        """
        scale = 1.0 / math.sqrt(self.d_model // self.num_heads)
        scores = ops.matmul(queries * scale, ops.transpose(keys, (0, 1, 3, 2)))
        if mask is not None:
            scores = scores + ops.expand_dims(_attention_bias(mask, scores.dtype), axis=1)
        # Of a single key every query has all: the first step of decoding.
        weights = ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)
        heads = ops.matmul(self.dropout(weights, training=training), values)
        joined = ops.reshape(
            ops.transpose(heads, (0, 2, 1, 3)), (-1, ops.shape(queries)[2], self.d_model)
        )
        return self.output_projection(joined), weights

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "d_model": self.d_model,
            "dropout_rate": self.dropout_rate,
        }


@keras.saving.register_keras_serializable(package="tf_transformer")
class GlobalSelfAttention(MultiHeadAttention):
    """Every position attends to every position: the encoder's attention.

    Args: as `MultiHeadAttention`.

    Call arguments:
        x: tensor `(B, T, D)`.
        attention_mask: bool tensor that broadcasts to `(B, T, T)`, or None: a padding, prefix,
            permutation or local mask, or several joined with `&`.
        training, return_attention_scores: as `MultiHeadAttention`.

    Returns:
        as `MultiHeadAttention`, with S = T.
    """

    def call(self, x, attention_mask=None, training=None, return_attention_scores=False):
        queries, keys, values = self._project(x, 0, 3)
        output, weights = self._attend(queries, keys, values, attention_mask, training)
        return (output, weights) if return_attention_scores else output


@keras.saving.register_keras_serializable(package="tf_transformer")
class CausalSelfAttention(GlobalSelfAttention):
    """Each position attends to itself and the past: the decoder's attention.

    Args: as `MultiHeadAttention`.

    Call arguments:
        x: tensor `(B, T, D)`.
        attention_mask: bool tensor that broadcasts to `(B, T, T)`, or None; what it forbids is
            forbidden besides the future.
        training, return_attention_scores: as `MultiHeadAttention`.
    """

    def call(self, x, attention_mask=None, training=None, return_attention_scores=False):
        causal = causal_mask(ops.shape(x)[1])
        return super().call(
            x,
            attention_mask=causal if attention_mask is None else causal & attention_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )

    def start_decoding(self, num_rows):
        """An empty cache for `num_rows` hypotheses: keys and values `(N, H, 0, d_k)`."""
        shape = (num_rows, self.num_heads, 0, self.d_model // self.num_heads)
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype)

    def decode_step(self, x, keys, values):
        """Attends from one new position to all before it and to itself.

        Args:
            x: tensor `(N, 1, D)`, the new position.
            keys, values: tensors `(N, H, t, d_k)`, the positions before it.

        Returns:
            output `(N, 1, D)`, and keys and values `(N, H, t + 1, d_k)`.
        """
        queries, new_keys, new_values = self._project(x, 0, 3)
        keys = ops.concatenate([keys, new_keys], axis=2)
        values = ops.concatenate([values, new_values], axis=2)
        output, _ = self._attend(queries, keys, values, mask=None, training=False)
        return output, keys, values


@keras.saving.register_keras_serializable(package="tf_transformer")
class CrossAttention(MultiHeadAttention):
    """The decoder attends to the encoder's output.

    Args, call arguments and returns: as `MultiHeadAttention`.
    """

    def start_decoding(self, context):
        """Projects the context `(B, S, D)` once: keys and values `(B, H, S, d_k)`."""
        return self._project(context, 1, 3)

    def decode_step(self, x, keys, values, mask):
        """Attends from `x` `(N, 1, D)` to projected keys and values; returns `(N, 1, D)`."""
        (queries,) = self._project(x, 0, 1)
        return self._attend(queries, keys, values, mask, training=False)[0]
