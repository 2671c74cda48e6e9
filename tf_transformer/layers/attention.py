"""Multi-head attention, and the three places a Transformer uses it."""

import math

import keras
from keras import ops

from tf_transformer.layers.dropout import Dropout
from tf_transformer.layers.masks import causal_mask
from tf_transformer.layers.rows import on_rows


def attention_bias(mask, dtype):
    """What a mask adds to attention scores: 0 where it is true, a large negative number elsewhere.

    The number is finite and fits `dtype`: a query with nothing to attend to attends to everything
    a little, where minus infinity would give NaN and lose the whole batch.

    Args:
        mask: bool tensor that broadcasts to `(B, T, S)`.
        dtype: dtype of the scores.

    Returns:
        tensor of `dtype` that broadcasts to `(B, H, T, S)`.
    """
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e9
    return ops.expand_dims((1.0 - ops.cast(mask, dtype)) * ops.cast(lowest, dtype), axis=1)


@keras.saving.register_keras_serializable(package="tf_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Scaled dot-product attention in several heads (Vaswani et al. 2017, section 3.2).

    `softmax(Q K^T / sqrt(d_k)) V` in each of `num_heads` subspaces of size
    `d_k = d_model / num_heads`, then one projection over the joined heads. Projections of one
    input are one matrix: keys and values here, queries too where query and context are the same.

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
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, *_):
        self.query_projection = self._projection(1, "query_projection")
        self.key_value_projection = self._projection(2, "key_value_projection")
        self.output_projection = self._projection(1, "output_projection")
        self.built = True

    def _projection(self, parts, name):
        """A built projection to `parts * D`, each part initialised as one square matrix."""
        limit = math.sqrt(3.0 / self.d_model)  # Glorot & Bengio 2010, of (D, D)
        projection = keras.layers.Dense(
            parts * self.d_model,
            kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
            dtype=self.dtype_policy,
            name=name,
        )
        projection.build((None, None, self.d_model))
        return projection

    def call(
        self, query, context, attention_mask=None, training=None, return_attention_scores=False
    ):
        (queries,) = self._heads(self.query_projection, query, 1)
        keys, values = self._heads(self.key_value_projection, context, 2)
        output, weights = self._attend(
            queries, self._scaled(keys), values, self._bias(attention_mask), training
        )
        return (output, weights) if return_attention_scores else output

    def _scaled(self, keys):
        """Keys over `sqrt(d_k)`: so scaled, a decoder's memory never needs it again.

        Besides, TensorFlow fuses a product, a factor and a bias into one operation, and in a
        loop has been seen to make a graph of that which silently returns nothing at all.
        """
        return keys * (self.d_model // self.num_heads) ** -0.5

    def _bias(self, mask):
        return None if mask is None else attention_bias(mask, self.compute_dtype)

    def _heads(self, projection, x, parts):
        """Projects `(B, T, D)` to `parts * D`, cut into `parts` tensors `(B, H, T, d_k)`."""
        projected = on_rows(projection, x)
        heads = parts * self.num_heads
        shape = (-1, ops.shape(x)[1], heads, self.d_model // self.num_heads)
        by_head = ops.transpose(ops.reshape(projected, shape), (0, 2, 1, 3))
        return ops.split(by_head, parts, axis=1)

    def _attend(self, queries, keys, values, bias, training):
        """Attention of `(B, H, T, d_k)` over `(B, H, S, d_k)`.

        Returns:
            output `(B, T, D)`, attention weights `(B, H, T, S)`.
        """
        heads, weights = self._weigh(queries, keys, values, bias, training)
        joined = ops.reshape(
            ops.transpose(heads, (0, 2, 1, 3)), (-1, ops.shape(queries)[2], self.d_model)
        )
        return on_rows(self.output_projection, joined), weights

    def _weigh(self, queries, keys, values, bias, training):
        """The weighted values `(B, H, T, d_k)`, and the weights `(B, H, T, S)`."""
        scores = ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2)))
        if bias is not None:
            scores = scores + bias
        # Of a single key every query has all: the first step of decoding.
        weights = ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)
        return ops.matmul(self.dropout(weights, training=training), values), weights

    def _step_heads(self, projected, parts, beams):
        """Cuts the rows `(N, parts * D)` of a decoding step into `parts` `(B, H, K, d_k)`."""
        heads, width = parts * self.num_heads, self.d_model // self.num_heads
        if beams is None:
            by_head = ops.reshape(projected, (-1, heads, 1, width))
        else:
            rows = ops.reshape(projected, (-1, ops.shape(beams)[0], heads, width))
            by_head = ops.transpose(rows, (0, 2, 1, 3))
        return ops.split(by_head, parts, axis=1) if parts > 1 else [by_head]

    def _step_output(self, queries, keys, values, bias, beams):
        """Attention of `(B, H, K, d_k)` over `(B, H, S, d_k)`, as rows `(N, D)`."""
        heads, _ = self._weigh(queries, keys, values, bias, training=False)
        if beams is not None:
            heads = ops.transpose(heads, (0, 2, 1, 3))
        return self.output_projection(ops.reshape(heads, (-1, self.d_model)))

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

    def build(self, *_):
        self.query_key_value_projection = self._projection(3, "query_key_value_projection")
        self.output_projection = self._projection(1, "output_projection")
        self.built = True

    def call(self, x, attention_mask=None, training=None, return_attention_scores=False):
        queries, keys, values = self._heads(self.query_key_value_projection, x, 3)
        output, weights = self._attend(
            queries, self._scaled(keys), values, self._bias(attention_mask), training
        )
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

    def start_decoding(self, num_positions, batch_size):
        """Keys and values of no position yet, `(B, H, num_positions, d_k)`.

        Args:
            num_positions: int or int scalar tensor; 0 for a cache that grows.
            batch_size: int or int scalar tensor, B.
        """
        shape = (batch_size, self.num_heads, num_positions, self.d_model // self.num_heads)
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype)

    def decode_step(self, x, keys, values, step):
        """Attends from the newest position of each row to those before it and to itself.

        Args:
            x: tensor `(N, D)`.
            keys, values: tensors `(B, H, t * K, d_k)`, the positions before it, keys scaled.
            step: `DecodingStep`.

        Returns:
            output `(N, D)`, and keys and values with the new position.
        """
        queries, new_keys, new_values = self._step_heads(
            self.query_key_value_projection(x), 3, step.beams
        )
        keys = step.remember(keys, self._scaled(new_keys))
        values = step.remember(values, new_values)
        return self._step_output(queries, keys, values, step.bias, step.beams), keys, values


@keras.saving.register_keras_serializable(package="tf_transformer")
class CrossAttention(MultiHeadAttention):
    """The decoder attends to the encoder's output.

    Args, call arguments and returns: as `MultiHeadAttention`.
    """

    def start_decoding(self, context):
        """Projects the context `(B, S, D)` once: scaled keys and values `(B, H, S, d_k)`."""
        keys, values = self._heads(self.key_value_projection, context, 2)
        return self._scaled(keys), values

    def decode_step(self, x, keys, values, bias, beams):
        """Attends from the rows `x` `(N, D)` to projected keys and values; returns `(N, D)`."""
        (queries,) = self._step_heads(self.query_projection(x), 1, beams)
        return self._step_output(queries, keys, values, bias, beams)
