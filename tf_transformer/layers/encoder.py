"""The encoder: embedded source tokens become context."""

import keras

from tf_transformer.layers.attention import GlobalSelfAttention
from tf_transformer.layers.feed_forward import FeedForward
from tf_transformer.layers.residual import Residual, layer_norm


@keras.saving.register_keras_serializable(package="tf_transformer")
class EncoderLayer(keras.layers.Layer):
    """Self-attention and a feed-forward network (Vaswani et al. 2017, figure 1, left).

    Args:
        d_model: int, D.
        num_heads: int, H.
        d_ff: int, width of the feed-forward network.
        dropout_rate: float in [0, 1), dropout of each sub-layer's output.
        attention_dropout_rate: float in [0, 1), dropout of the attention weights.
        norm_first: bool, see `Residual`.

    Call arguments:
        x: tensor `(B, S, D)`.
        attention_mask: bool tensor that broadcasts to `(B, S, S)`, or None.
        training: bool, whether dropout is applied.
        return_attention_scores: bool, whether to return the attention weights too.

    Returns:
        tensor `(B, S, D)`; with `return_attention_scores` also the weights `(B, H, S, S)`.
    """

    def __init__(
        self,
        d_model,
        num_heads,
        d_ff,
        dropout_rate=0.1,
        attention_dropout_rate=0.0,
        norm_first=True,
        *,
        name=None,
        trainable=True,
        dtype=None,
    ):
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.norm_first = norm_first
        policy = self.dtype_policy
        self.self_attention = GlobalSelfAttention(
            num_heads, d_model, attention_dropout_rate, dtype=policy, name="self_attention"
        )
        self.feed_forward = FeedForward(d_model, d_ff, dtype=policy, name="feed_forward")
        self.attention_residual = Residual(
            d_model, dropout_rate, norm_first, dtype=policy, name="attention_residual"
        )
        self.feed_forward_residual = Residual(
            d_model, dropout_rate, norm_first, dtype=policy, name="feed_forward_residual"
        )

    def build(self, *_):
        self.self_attention.build()
        self.feed_forward.build()
        self.attention_residual.build()
        self.feed_forward_residual.build()
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

    def get_config(self):
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "norm_first": self.norm_first,
        }


@keras.saving.register_keras_serializable(package="tf_transformer")
class Encoder(keras.layers.Layer):
    """A stack of encoder layers, with a last normalisation where each layer is norm-first.

    Args:
        num_layers: int.
        d_model, num_heads, d_ff, dropout_rate, attention_dropout_rate, norm_first: as
            `EncoderLayer`.

    Call arguments: as `EncoderLayer`.

    Returns:
        context `(B, S, D)`; with `return_attention_scores` also a list of weights
        `(B, H, S, S)`, one a layer.
    """

    def __init__(
        self,
        num_layers,
        d_model,
        num_heads,
        d_ff,
        dropout_rate=0.1,
        attention_dropout_rate=0.0,
        norm_first=True,
        *,
        name=None,
        trainable=True,
        dtype=None,
    ):
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        self.num_layers = num_layers
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.norm_first = norm_first
        self.layers = [
            EncoderLayer(
                d_model,
                num_heads,
                d_ff,
                dropout_rate,
                attention_dropout_rate,
                norm_first,
                dtype=self.dtype_policy,
                name=f"layer_{index}",
            )
            for index in range(num_layers)
        ]
        self.norm = layer_norm(self.dtype_policy, "norm") if norm_first else None

    def build(self, *_):
        for layer in self.layers:
            layer.build()
        if self.norm is not None:
            self.norm.build((None, None, self.d_model))
        self.built = True

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

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "norm_first": self.norm_first,
        }
