"""The encoder: embedded source tokens become context."""

import keras

from tf_transformer.layers.attention import GlobalSelfAttention
from tf_transformer.layers.block import Block, Stack


@keras.saving.register_keras_serializable(package="tf_transformer")
class EncoderLayer(Block):
    """Self-attention and a feed-forward network (Vaswani et al. 2017, figure 1, left).

    Args: as `Block`.

    Call arguments:
        x: tensor `(B, S, D)`.
        attention_mask: bool tensor that broadcasts to `(B, S, S)`, or None.
        training: bool, whether dropout is applied.
        return_attention_scores: bool, whether to return the attention weights too.

    Returns:
        tensor `(B, S, D)`; with `return_attention_scores` also the weights `(B, H, S, S)`.
    """

    def build(self, *_):
        self.self_attention = self.attention(GlobalSelfAttention, "self_attention")
        self.attention_residual = self.residual("attention_residual")
        self.feed_forward = self.feed_forward_network("feed_forward")
        self.feed_forward_residual = self.residual("feed_forward_residual")
        self.built = True

    def call(self, x, attention_mask=None, training=None, return_attention_scores=False):
        attended, weights = self.self_attention(
            self.attention_residual.enter(x),
            attention_mask=attention_mask,
            training=training,
            return_attention_scores=True,
        )
        x = self.attention_residual.leave(x, attended, training)
        transformed = self.feed_forward(self.feed_forward_residual.enter(x))
        x = self.feed_forward_residual.leave(x, transformed, training)
        return (x, weights) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="tf_transformer")
class Encoder(Stack):
    """A stack of encoder layers.

    Args: as `Stack`.

    Call arguments: as `EncoderLayer`.

    Returns:
        context `(B, S, D)`; with `return_attention_scores` also a list of weights
        `(B, H, S, S)`, one a layer.
    """

    block_class = EncoderLayer

    def call(self, x, attention_mask=None, training=None, return_attention_scores=False):
        all_weights = []
        for layer in self.layers:
            x, weights = layer(
                x, attention_mask=attention_mask, training=training, return_attention_scores=True
            )
            all_weights.append(weights)
        if self.norm is not None:
            x = self.norm(x)
        return (x, all_weights) if return_attention_scores else x
