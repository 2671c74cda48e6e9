"""The encoder: from embedded source tokens to the context."""

import keras

from tf_transformer.layers.attention import GlobalSelfAttention
from tf_transformer.layers.base import Shape, Tensor, ensure_built
from tf_transformer.layers.block import LayerStack, TransformerLayer
from tf_transformer.layers.restricted_attention import RestrictedSelfAttention


@keras.saving.register_keras_serializable(package="tf_transformer")
class EncoderLayer(TransformerLayer):
    """Self-attention and a feed-forward network (Vaswani et al. 2017, figure 1, left).

    Args: as in `TransformerLayer`.

    Call arguments:
        x: float tensor `(B, S, D)`.
        attention_mask: bool or integer tensor, see `MultiHeadAttention`; None for everywhere.
        training: whether dropout is applied.
        return_attention_scores: whether to return the attention weights too.

    Returns:
        float tensor `(B, S, D)`; with `return_attention_scores` also the weights `(B, H, S, S)`.
    """

    def _create_sublayers(self) -> None:
        self.self_attention = self._self_attention(GlobalSelfAttention, RestrictedSelfAttention)
        self.attention_residual = self._residual("attention_residual")
        self.feed_forward = self._feed_forward("feed_forward")
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def build(self, x_shape: Shape) -> None:
        self.check_shapes(x=x_shape)
        for layer in (
            self.self_attention, self.attention_residual,
            self.feed_forward, self.feed_forward_residual,
        ):  # fmt: skip
            ensure_built(layer, x_shape)

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        self.check_shapes(x=x.shape)
        attended = self.self_attention(
            self.attention_residual.pre(x),
            attention_mask=attention_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        if return_attention_scores:
            attended, weights = attended
        x = self._transform(x, attended, training)
        return (x, weights) if return_attention_scores else x

    def _transform(self, x: Tensor, attended: Tensor, training: bool | None = None) -> Tensor:
        """The layer's output, from its input and what was attended to."""
        x = self.attention_residual.post(x, attended, training)
        transformed = self.feed_forward(self.feed_forward_residual.pre(x))
        return self.feed_forward_residual.post(x, transformed, training)


@keras.saving.register_keras_serializable(package="tf_transformer")
class Encoder(LayerStack):
    """A stack of `EncoderLayer`s, with a final norm where they are norm-first.

    Args: as in `LayerStack`.

    Call arguments: as in `EncoderLayer`.

    Returns:
        context, float tensor `(B, S, D)`; with `return_attention_scores` also a list of the
        weights `(B, H, S, S)` of each layer.
    """

    layer_class = EncoderLayer

    def build(self, x_shape: Shape) -> None:
        self.check_shapes(x=x_shape)
        self._build_layers(x_shape)

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        all_weights = []
        for layer in self.layers:
            x = layer(
                x,
                attention_mask=attention_mask,
                training=training,
                return_attention_scores=return_attention_scores,
            )
            if return_attention_scores:
                x, weights = x
                all_weights.append(weights)
        if self.norm is not None:
            x = self.norm(x)
        return (x, all_weights) if return_attention_scores else x
