"""The base classes of encoder and decoder layers, and of stacks of these layers."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras

from tf_transformer.layers.attention import GlobalSelfAttention
from tf_transformer.layers.base import Activation, Layer, Shape, Tensor, built
from tf_transformer.layers.feed_forward import FeedForward
from tf_transformer.layers.norm import LayerNorm
from tf_transformer.layers.residual import Residual


class TransformerLayer(Layer):
    """Base class of encoder and decoder layers: self-attention and a feed-forward network.

    Args:
        d_model, num_heads, d_ff: D, H, and the width of the feed-forward network.
        dropout_rate, attention_dropout_rate: dropout of each sub-layer's output, and of the
            attention weights, in [0, 1).
        norm_first, activation, layer_norm_epsilon: see `Residual` and `FeedForward`.
    """

    self_attention_class: ClassVar[type[GlobalSelfAttention]] = GlobalSelfAttention

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        norm_first: bool = True,
        activation: Activation = "relu",
        layer_norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.d_model, self.num_heads, self.d_ff = d_model, num_heads, d_ff
        self.dropout_rate, self.attention_dropout_rate = dropout_rate, attention_dropout_rate
        self.norm_first, self.activation = norm_first, activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: d_model})
        self._create_attention()
        self.feed_forward = FeedForward(
            d_model, d_ff, activation, dtype=self.dtype_policy, name="feed_forward"
        )
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def _create_attention(self) -> None:
        self.self_attention = self._attention(self.self_attention_class, "self_attention")
        self.self_residual = self._residual("self_residual")

    def _attention(self, kind: type, name: str) -> keras.layers.Layer:
        sizes = self.num_heads, self.d_model, self.attention_dropout_rate
        return kind(*sizes, dtype=self.dtype_policy, name=name)

    def _residual(self, name: str) -> Residual:
        options = self.d_model, self.dropout_rate, self.norm_first, self.layer_norm_epsilon
        return Residual(*options, dtype=self.dtype_policy, name=name)

    def build(self, x_shape: Shape) -> None:
        layers = self.self_attention, self.self_residual, self.feed_forward
        for layer in (*layers, self.feed_forward_residual):
            layer.build(x_shape)

    def _attend_to_self(
        self, x: Tensor, mask: Tensor | None, training: bool | None
    ) -> tuple[Tensor, Tensor]:
        """Return the output of the first sub-layer `(B, T, D)`, and its weights `(B, H, T, T)`."""
        options = {"training": training, "return_attention_scores": True}
        attended, weights = self.self_attention(self.self_residual.pre(x), mask, **options)
        return self.self_residual.post(x, attended, training), weights

    def _transform(self, x: Tensor, training: bool | None = None) -> Tensor:
        """Return the output of the last sub-layer, the feed-forward network."""
        transformed = self.feed_forward(self.feed_forward_residual.pre(x))
        return self.feed_forward_residual.post(x, transformed, training)


class LayerStack(Layer):
    """Base class of stacks of layers, with a final norm where the layers are norm-first.

    Args:
        layers: one or more layers, built or not, in the order in which they are applied; all have
            the same `d_model`, `norm_first` and `layer_norm_epsilon`.
        **kwargs: as in `keras.layers.Layer`; the dtype is that of the final norm.
    """

    def __init__(self, layers: Sequence[TransformerLayer], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layers = list(layers)
        kinds = {(each.d_model, each.norm_first, each.layer_norm_epsilon) for each in self.layers}
        if len(kinds) != 1:
            raise ValueError(
                f"{self.name} needs one or more layers with the same d_model, norm_first and "
                f"layer_norm_epsilon; received {sorted(kinds)}."
            )
        [(self.d_model, norm_first, epsilon)] = kinds
        options = {"epsilon": epsilon, "dtype": self.dtype_policy, "name": "norm"}
        self.norm = LayerNorm(**options) if norm_first else None

    def build(self, x_shape: Shape, *context_shape: Shape) -> None:
        for layer in self.layers:
            built(layer, x_shape, *context_shape)
        if self.norm is not None:
            built(self.norm, x_shape)

    def _run(self, x: Tensor, *context: Tensor, **options: Any) -> tuple[Any, ...]:
        """Return the output, and for each kind of attention a list of each layer's weights."""
        all_weights = []
        for layer in self.layers:
            x, *weights = layer(x, *context, return_attention_scores=True, **options)
            all_weights.append(weights)
        return self._normalised(x), *map(list, zip(*all_weights, strict=True))

    def _normalised(self, x: Tensor) -> Tensor:
        """Return the stack's output, given the output of its last layer."""
        return x if self.norm is None else self.norm(x)
