"""The attention layers of recurrent translation models, and a window of local attention."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.base import Layer, Shape, Tensor, built, on_rows
from tf_transformer.layers.masks import attention_bias, expand_mask, softmax


def _expand_mask(mask: Tensor, query: Tensor, context: Tensor) -> Tensor:
    """Check a mask against query and context; return it with the three axes of the weights."""
    return expand_mask(mask, (query.shape[0], 1, query.shape[1], context.shape[1]))[:, 0]


class RecurrentAttention(Layer):
    """Base class of layers that return a mean of the context, weighted by a softmax of scores.

    The score is `query · key` unless a subclass overrides `_scores`. A subclass has a
    `key_projection` or overrides `project_keys`. A model with a loop over time projects the keys
    once, before the loop, and then calls `attend`.

    Call arguments:
        query: float tensor `(B, T, D)`.
        context: float tensor `(B, S, C)`.
        attention_mask: bool or integer (0 and 1) tensor `(B, 1, S)`, `(B, T, S)` or `(T, S)`, True
            where attending is allowed; None for everywhere.
        position_weights: float tensor `(B, T, S)`, factors of the weights after the softmax. A
            factor of 0 also masks its position, see `PredictedWindow`. None for factors of 1.

    Returns:
        float tensor `(B, T, C)`; with `return_attention_scores` also the weights `(B, T, S)`.
    """

    def build(self, query_shape: Shape, context_shape: Shape) -> None:
        pass

    def call(
        self,
        query: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        position_weights: Tensor | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        bias = None
        if attention_mask is not None:
            mask = _expand_mask(attention_mask, query, context)
            bias = attention_bias(mask, self.compute_dtype)
        keys = self.project_keys(context)
        output, weights = self.attend(query, keys, context, bias, position_weights)
        return (output, weights) if return_attention_scores else output

    def project_keys(self, context: Tensor) -> Tensor:
        """Return the keys `(B, S, …)` of the context, from which scores are computed."""
        return on_rows(self.key_projection, context)

    def _projection(
        self, name: str, size: int, num_inputs: int, use_bias: bool = False
    ) -> keras.layers.Dense:
        dtype = self.dtype_policy
        layer = keras.layers.Dense(size, use_bias=use_bias, dtype=dtype, name=name)
        return built(layer, (None, num_inputs))

    def _scores(self, query: Tensor, keys: Tensor) -> Tensor:
        return ops.matmul(query, ops.transpose(keys, (0, 2, 1)))

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        context: Tensor,
        bias: Tensor | None = None,
        position_weights: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return output and weights, given the keys of `project_keys` and the mask as a bias."""
        scores = self._scores(query, keys)
        if bias is not None:
            scores = scores + bias
        if position_weights is not None:
            scores = scores + attention_bias(position_weights > 0, self.compute_dtype)
        weights = softmax(scores)
        if position_weights is not None:
            weights = weights * position_weights
        return ops.matmul(weights, context), weights


class AdditiveAttention(RecurrentAttention):
    """The score `v · tanh(W query + U key + b)` (Bahdanau et al. 2015, appendix A.1.2).

    Luong et al. 2015 (section 3.1) call this score concat, with W and U as one matrix. `units` is
    the width of the hidden layer.

    Example:
        >>> attention = tt.AdditiveAttention(units=8)
        >>> attention(np.ones((1, 5, 6)), np.ones((1, 3, 4))).shape
        TensorShape([1, 5, 4])
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, query_shape: Shape, context_shape: Shape) -> None:
        units, project = self.units, self._projection
        self.query_projection = project("query_projection", units, query_shape[-1])
        self.key_projection = project("key_projection", units, context_shape[-1], use_bias=True)
        self.score_projection = project("score_projection", 1, units)

    def _scores(self, query: Tensor, keys: Tensor) -> Tensor:
        queries = on_rows(self.query_projection, query)
        hidden = ops.tanh(queries[:, :, None] + keys[:, None])
        return on_rows(self.score_projection, hidden)[..., 0]


class DotAttention(RecurrentAttention):
    """The score `query · key`, for keys as wide as the query (Luong et al. 2015, section 3.1).

    Example:
        >>> tt.DotAttention()(np.ones((1, 5, 8)), np.ones((1, 3, 8))).shape
        TensorShape([1, 5, 8])
    """

    def project_keys(self, context: Tensor) -> Tensor:
        return context


class GeneralAttention(RecurrentAttention):
    """The score `query · W key` (Luong et al. 2015, section 3.1).

    Example:
        >>> tt.GeneralAttention()(np.ones((1, 5, 6)), np.ones((1, 3, 4))).shape
        TensorShape([1, 5, 4])
    """

    def build(self, query_shape: Shape, context_shape: Shape) -> None:
        sizes = query_shape[-1], context_shape[-1]
        self.key_projection = self._projection("key_projection", *sizes)


class PredictedWindow(Layer):
    """Gaussian factors of positions around a centre that the query predicts.

    This is local attention with predictive alignment, local-p (Luong et al. 2015, section 3.2). The
    centre is `p = L · sigmoid(v · tanh(W query))` for a source of L tokens. Position s has the
    factor `exp(-(s - p)² / 2σ²)` with σ = `window` / 2, or 0 if it is more than `window` away from
    p. The factors are `position_weights` of an attention layer.

    Args:
        window: the paper's D, the largest distance of a position from p, at least 1.
        units: width of the hidden layer.

    Call arguments:
        query: float tensor `(B, T, D)`; the result is `(B, T, S)`.
        context: float tensor `(B, S, C)`, of which only S matters.
        attention_mask: as in `RecurrentAttention`; L counts allowed positions, which come first.

    Example:
        >>> query, context = np.ones((1, 5, 8)), np.ones((1, 3, 8))
        >>> window = tt.PredictedWindow(window=2, units=8)(query, context)
        >>> tt.DotAttention()(query, context, position_weights=window).shape
        TensorShape([1, 5, 8])
    """

    def __init__(self, window: int, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if window < 1:
            raise ValueError(f"window must be at least 1; received {window=}.")
        self.window, self.units, policy = window, units, self.dtype_policy
        self.hidden = keras.layers.Dense(units, "tanh", False, dtype=policy, name="hidden")
        self.centre = keras.layers.Dense(1, use_bias=False, dtype=policy, name="centre")

    def build(self, query_shape: Shape, context_shape: Shape) -> None:
        self.hidden.build((None, query_shape[-1]))
        self.centre.build((None, self.units))

    def call(self, query: Tensor, context: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        length = ops.shape(context)[1]
        positions = ops.arange(length, dtype="float32")
        num_tokens = ops.cast(length, "float32")
        if attention_mask is not None:
            mask = _expand_mask(attention_mask, query, context)
            num_tokens = ops.sum(ops.cast(mask, "float32"), axis=-1, keepdims=True)
        # Positions are float32: in bfloat16 neighbours beyond 256 would be equal.
        logits = on_rows(lambda rows: self.centre(self.hidden(rows)), query)
        distances = positions - num_tokens * ops.sigmoid(ops.cast(logits, "float32"))
        factors = ops.exp(-2.0 * ops.square(distances / self.window))
        inside = ops.abs(distances) <= self.window
        return ops.cast(ops.where(inside, factors, 0.0), self.compute_dtype)
