"""Multi-head attention, and its three uses in a Transformer."""

import math
from typing import Any, ClassVar

import keras
from keras import ops

from tf_transformer.layers.base import Layer, Shape, Tensor
from tf_transformer.layers.kv_cache import append
from tf_transformer.layers.masks import attention_bias, causal_mask, expand_mask, softmax


class MultiHeadAttention(Layer):
    """Scaled dot-product attention in several heads (Vaswani et al. 2017, section 3.2).

    Computes `softmax(Q K^T / sqrt(d_k)) V` in each of `num_heads` subspaces of size
    `d_k = d_model / num_heads`, then projects the concatenated heads. One matrix projects the
    context to keys and values; in self-attention it also projects to queries. Unlike the paper's,
    the projections have biases.

    Args:
        num_heads: H, the number of heads.
        d_model: D, a multiple of `num_heads`.
        dropout_rate: dropout of the attention weights, in [0, 1).

    Call arguments:
        query: float tensor `(B, T, D)`.
        context: float tensor `(B, S, D)`.
        attention_mask: bool or integer (0 and 1) tensor `(T, S)`, `(B, T, S)` or `(B, H, T, S)`
            whose axes may have size 1, True where attending is allowed; None for everywhere.

    Returns:
        float tensor `(B, T, D)`; with `return_attention_scores` also the weights `(B, H, T, S)`.

    Example:
        >>> attention = tt.MultiHeadAttention(num_heads=2, d_model=8)
        >>> query, context = np.ones((1, 5, 8)), np.ones((1, 3, 8))
        >>> output, weights = attention(query, context, return_attention_scores=True)
        >>> output.shape, weights.shape
        (TensorShape([1, 5, 8]), TensorShape([1, 2, 5, 3]))
    """

    # The names of the input projections, and the number of parts of size D that each computes.
    input_projections: ClassVar[dict[str, int]] = {"query_projection": 1, "key_value_projection": 2}

    def __init__(
        self, num_heads: int, d_model: int, dropout_rate: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if min(num_heads, d_model) < 1 or d_model % num_heads:
            raise ValueError(f"d_model must be a multiple of num_heads: {d_model=}, {num_heads=}.")
        self.num_heads, self.d_model, self.dropout_rate = num_heads, d_model, dropout_rate
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: d_model})
        limit = math.sqrt(3.0 / d_model)  # Glorot & Bengio 2010, with a (D, D) matrix per part
        for name, parts in {**self.input_projections, "output_projection": 1}.items():
            start, policy = keras.initializers.RandomUniform(-limit, limit), self.dtype_policy
            size = parts * d_model
            layer = keras.layers.Dense(size, kernel_initializer=start, dtype=policy, name=name)
            setattr(self, name, layer)

    def build(self, query_shape: Shape, context_shape: Shape | None = None) -> None:
        for name in (*self.input_projections, "output_projection"):
            getattr(self, name).build((None, self.d_model))

    def call(
        self,
        query: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        mask = self._mask(attention_mask, query, context)
        heads = self._project(query, context)
        output, weights = self._attend(heads, mask, training, return_attention_scores)
        return (output, weights) if return_attention_scores else output

    def _project(self, query: Tensor, context: Tensor) -> list[Tensor]:
        """Return queries `(B, H, T, d_k)`, and keys and values `(B, H, S, d_k)`."""
        queries = self._heads(self.query_projection, query, 1)
        return queries + self._heads(self.key_value_projection, context, 2)

    def _mask(self, mask: Tensor | None, query: Tensor, context: Tensor) -> Tensor | None:
        """Return the mask of rank 4 that is applied to the scores of query and context, or None."""
        sizes = query.shape[0], self.num_heads, query.shape[1], context.shape[1]
        return None if mask is None else expand_mask(mask, sizes)

    def _scaled(self, keys: Tensor) -> Tensor:
        """Divide keys by `sqrt(d_k)`; keys in a KV cache are scaled once, when they are appended.

        With scaled queries TensorFlow fused product, factor and bias into one operation, and the
        decoding loop returned no rows, without an error.
        """
        return keys * (self.d_model // self.num_heads) ** -0.5

    def _heads(self, projection: keras.Layer, x: Tensor, parts: int) -> list[Tensor]:
        """Project `(B, T, D)` to `parts * D`, and split into `parts` tensors `(B, H, T, d_k)`."""
        projected = projection(ops.reshape(x, (-1, x.shape[-1])))  # see `on_rows`
        shape = (*ops.shape(x)[:2], parts, self.num_heads, self.d_model // self.num_heads)
        by_part = ops.transpose(ops.reshape(projected, shape), (2, 0, 3, 1, 4))
        return ops.unstack(by_part, parts)  # which shares memory, unlike `split`

    def _attend(
        self, heads: list[Tensor], mask: Tensor | None, training: bool | None, with_weights: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the output `(B, T, D)`, and the weights `(B, H, T, S)`."""
        queries, keys, values = heads
        bias = None if mask is None else attention_bias(mask, self.compute_dtype)
        weights = self._weights(queries, self._scaled(keys), bias)
        return self._join(ops.matmul(self.dropout(weights, training=training), values)), weights

    def _join(self, heads: Tensor) -> Tensor:
        """Return the output `(B, T, D)` of the heads `(B, H, T, d_k)`."""
        batch_size, _, length, _ = ops.shape(heads)
        rows = ops.reshape(ops.transpose(heads, (0, 2, 1, 3)), (-1, self.d_model))
        return ops.reshape(self.output_projection(rows), (batch_size, length, self.d_model))

    def _weights(self, queries: Tensor, scaled_keys: Tensor, bias: Tensor | None = None) -> Tensor:
        return softmax(self._scores(queries, scaled_keys, bias))

    def _scores(self, queries: Tensor, scaled_keys: Tensor, bias: Tensor | None = None) -> Tensor:
        scores = ops.einsum("...td,...sd->...ts", queries, scaled_keys)
        return scores if bias is None else scores + bias

    def _step_heads(self, projected: Tensor, parts: int) -> list[Tensor]:
        """Split rows `(N, parts * D)` of a decoding step into `parts` tensors `(N, H, 1, d_k)`."""
        shape = (-1, parts * self.num_heads, 1, self.d_model // self.num_heads)
        by_head = ops.reshape(projected, shape)
        return ops.split(by_head, parts, axis=1) if parts > 1 else [by_head]

    def _step_output(self, heads: Tensor) -> Tensor:
        """Return the output `(N, D)` of the heads `(N, H, 1, d_k)` of a decoding step."""
        return self.output_projection(ops.reshape(heads, (-1, self.d_model)))


class GlobalSelfAttention(MultiHeadAttention):
    """Self-attention in which every position may attend to every other: the encoder's attention.

    Args, call arguments and returns: as in `MultiHeadAttention`, with one input `x` `(B, T, D)`.

    Example:
        >>> token_ids = np.array([[5, 6, 7, 0]])
        >>> mask = tt.padding_mask(token_ids, pad_id=0)
        >>> tt.GlobalSelfAttention(2, 8)(np.ones((1, 4, 8)), attention_mask=mask).shape
        TensorShape([1, 4, 8])
    """

    input_projections: ClassVar[dict[str, int]] = {"query_key_value_projection": 3}

    def build(self, x_shape: Shape) -> None:
        super().build(x_shape)

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        return super().call(x, x, attention_mask, training, return_attention_scores)

    def _project(self, query: Tensor, context: Tensor) -> list[Tensor]:
        return self._heads(self.query_key_value_projection, query, 3)

    def _append(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the rows `x` `(N, D)`, and the KV cache with the new position."""
        projected = self.query_key_value_projection(x)
        queries, new_keys, new_values = self._step_heads(projected, 3)
        return queries, append(keys, self._scaled(new_keys)), append(values, new_values)


class CausalSelfAttention(GlobalSelfAttention):
    """Self-attention in which a position attends to itself and the past: the decoder's attention.

    Args, call arguments and returns: as in `GlobalSelfAttention`; `attention_mask` applies in
        addition to the causal mask.

    Example:
        >>> attention = tt.CausalSelfAttention(num_heads=2, d_model=8)
        >>> _, weights = attention(np.ones((1, 3, 8)), return_attention_scores=True)
        >>> np.round(weights[0, 0], 2)
        array([[1.  , 0.  , 0.  ],
               [0.5 , 0.5 , 0.  ],
               [0.33, 0.33, 0.33]], dtype=float32)
    """

    def _mask(self, mask: Tensor | None, query: Tensor, context: Tensor) -> Tensor:
        causal, mask = causal_mask(ops.shape(query)[1])[None], super()._mask(mask, query, context)
        return causal if mask is None else ops.logical_and(causal, mask)

    def decode_step(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Attend from the newest position of each row to itself and the cached positions.

        Takes the rows `x` `(N, D)` and the KV cache, keys and values `(N, H, t, d_k)`; returns the
        output `(N, D)`, and keys and values with the newest position.
        """
        queries, keys, values = self._append(x, keys, values)
        heads = ops.matmul(self._weights(queries, keys), values)
        return self._step_output(heads), keys, values


class CrossAttention(MultiHeadAttention):
    """Attention of the decoder over the encoder's output.

    Args, call arguments and returns: as in `MultiHeadAttention`.

    Example:
        >>> x, context = np.ones((1, 5, 8)), np.ones((1, 3, 8))
        >>> tt.CrossAttention(num_heads=2, d_model=8)(x, context).shape
        TensorShape([1, 5, 8])
    """

    def start_decoding(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scaled keys and the values `(B, H, S, d_k)` of the context `(B, S, D)`."""
        keys, values = self._heads(self.key_value_projection, context, 2)
        return self._scaled(keys), values

    def decode_step(self, x: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Attend from rows `x` `(N, D)` to projected keys and values, and return `(N, D)`."""
        (queries,) = self._step_heads(self.query_projection(x), 1)
        return self._step_output(ops.matmul(self._weights(queries, keys, bias), values))
