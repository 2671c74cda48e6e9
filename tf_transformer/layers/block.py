"""What every block of a Transformer shares: its sizes, and how blocks are stacked."""

import keras

from tf_transformer.layers.feed_forward import FeedForward
from tf_transformer.layers.residual import Residual, layer_norm


class Sized(keras.layers.Layer):
    """A layer that has the sizes of a Transformer's blocks, and keeps them in its configuration.

    Args:
        d_model: int, D.
        num_heads: int, H.
        d_ff: int, width of the feed-forward network.
        dropout_rate: float in [0, 1), dropout of each sub-layer's output.
        attention_dropout_rate: float in [0, 1), dropout of the attention weights.
        norm_first: bool, see `Residual`.
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

    def sizes(self):
        """The arguments that blocks have in common, as a dict."""
        return {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "norm_first": self.norm_first,
        }

    def get_config(self):
        return {**super().get_config(), **self.sizes()}


class Block(Sized):
    """A layer of the encoder or the decoder; subclasses make their parts in `build`.

    Args: as `Sized`.
    """

    def attention(self, layer_class, name):
        """An attention layer of this block's sizes, built."""
        layer = layer_class(
            self.num_heads,
            self.d_model,
            self.attention_dropout_rate,
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build()
        return layer

    def feed_forward_network(self, name):
        """A feed-forward network of this block's sizes, built."""
        layer = FeedForward(self.d_model, self.d_ff, dtype=self.dtype_policy, name=name)
        layer.build()
        return layer

    def residual(self, name):
        """The connection around one sub-layer, built."""
        layer = Residual(
            self.d_model, self.dropout_rate, self.norm_first, dtype=self.dtype_policy, name=name
        )
        layer.build()
        return layer


class Stack(Sized):
    """Blocks one upon the other, with a last normalisation where each is norm-first.

    Args:
        num_layers: int.
        d_model, num_heads, d_ff, dropout_rate, attention_dropout_rate, norm_first: as `Sized`.
    """

    block_class = Block

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
        super().__init__(
            d_model,
            num_heads,
            d_ff,
            dropout_rate,
            attention_dropout_rate,
            norm_first,
            name=name,
            trainable=trainable,
            dtype=dtype,
        )
        self.num_layers = num_layers

    def build(self, *_):
        self.layers = [
            self.block_class(**self.sizes(), dtype=self.dtype_policy, name=f"layer_{index}")
            for index in range(self.num_layers)
        ]
        for layer in self.layers:
            layer.build()
        self.norm = None
        if self.norm_first:
            self.norm = layer_norm(self.dtype_policy, "norm")
            self.norm.build((None, None, self.d_model))
        self.built = True

    def get_config(self):
        return {**super().get_config(), "num_layers": self.num_layers}
