"""The decoder: embedded target tokens and context become hidden states."""

import keras

from tf_transformer.layers.attention import CausalSelfAttention, CrossAttention
from tf_transformer.layers.block import Block, Stack


@keras.saving.register_keras_serializable(package="tf_transformer")
class DecoderLayer(Block):
    """Causal self-attention, cross-attention, feed-forward (Vaswani et al. 2017, figure 1, right).

    Args: as `Block`.

    Call arguments:
        x: tensor `(B, T, D)`.
        context: tensor `(B, S, D)`.
        attention_mask: bool tensor that broadcasts to `(B, T, T)`, or None; the future is always
            masked besides.
        context_mask: bool tensor that broadcasts to `(B, T, S)`, or None.
        training: bool, whether dropout is applied.
        return_attention_scores: bool, whether to return the attention weights too.

    Returns:
        tensor `(B, T, D)`; with `return_attention_scores` also the weights of self-attention
        `(B, H, T, T)` and of cross-attention `(B, H, T, S)`.
    """

    def build(self, *_):
        self.self_attention = self.attention(CausalSelfAttention, "self_attention")
        self.self_residual = self.residual("self_residual")
        self.cross_attention = self.attention(CrossAttention, "cross_attention")
        self.cross_residual = self.residual("cross_residual")
        self.feed_forward = self.feed_forward_network("feed_forward")
        self.feed_forward_residual = self.residual("feed_forward_residual")
        self.built = True

    def call(
        self,
        x,
        context,
        attention_mask=None,
        context_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        attended, self_weights = self.self_attention(
            self.self_residual.enter(x),
            attention_mask=attention_mask,
            training=training,
            return_attention_scores=True,
        )
        x = self.self_residual.leave(x, attended, training)
        attended, cross_weights = self.cross_attention(
            self.cross_residual.enter(x),
            context,
            attention_mask=context_mask,
            training=training,
            return_attention_scores=True,
        )
        x = self.cross_residual.leave(x, attended, training)
        transformed = self.feed_forward(self.feed_forward_residual.enter(x))
        x = self.feed_forward_residual.leave(x, transformed, training)
        return (x, self_weights, cross_weights) if return_attention_scores else x

    def decode_step(self, x, self_keys, self_values, cross_keys, cross_values, context_mask):
        """One new position `x` `(N, 1, D)`; shapes of keys and values as in `attention.py`.

        Returns:
            output `(N, 1, D)`, and self-attention's keys and values, one position longer.
        """
        attended, self_keys, self_values = self.self_attention.decode_step(
            self.self_residual.enter(x), self_keys, self_values
        )
        x = self.self_residual.leave(x, attended)
        attended = self.cross_attention.decode_step(
            self.cross_residual.enter(x), cross_keys, cross_values, context_mask
        )
        x = self.cross_residual.leave(x, attended)
        transformed = self.feed_forward(self.feed_forward_residual.enter(x))
        return self.feed_forward_residual.leave(x, transformed), self_keys, self_values


@keras.saving.register_keras_serializable(package="tf_transformer")
class Decoder(Stack):
    """A stack of decoder layers.

    Args: as `Stack`.

    Call arguments: as `DecoderLayer`.

    Returns:
        tensor `(B, T, D)`; with `return_attention_scores` also two lists of weights, one entry a
        layer: self-attention `(B, H, T, T)` and cross-attention `(B, H, T, S)`.
    """

    block_class = DecoderLayer

    def call(
        self,
        x,
        context,
        attention_mask=None,
        context_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        all_self_weights, all_cross_weights = [], []
        for layer in self.layers:
            x, self_weights, cross_weights = layer(
                x,
                context,
                attention_mask=attention_mask,
                context_mask=context_mask,
                training=training,
                return_attention_scores=True,
            )
            all_self_weights.append(self_weights)
            all_cross_weights.append(cross_weights)
        if self.norm is not None:
            x = self.norm(x)
        return (x, all_self_weights, all_cross_weights) if return_attention_scores else x

    def start_decoding(self, context, context_mask):
        """Everything of the decoder that depends on the context alone.

        Args:
            context: tensor `(B, S, D)`.
            context_mask: bool tensor `(B, 1, S)`.

        Returns:
            dict with `"source"`, which decoding never changes, and `"target"`, which grows by one
            position a step: both flat dicts of tensors whose axis 0 is the row.
        """
        source, target = {"context_mask": context_mask}, {}
        for index, layer in enumerate(self.layers):
            keys, values = layer.cross_attention.start_decoding(context)
            source[f"keys_{index}"], source[f"values_{index}"] = keys, values
            keys, values = layer.self_attention.start_decoding(keras.ops.shape(context)[0])
            target[f"keys_{index}"], target[f"values_{index}"] = keys, values
        return {"source": source, "target": target}

    def decode_step(self, x, cache):
        """One new position.

        Args:
            x: tensor `(N, 1, D)`.
            cache: as `start_decoding` or the step before returned it.

        Returns:
            hidden state `(N, 1, D)` and the cache for the next step.
        """
        source, target = cache["source"], {}
        for index, layer in enumerate(self.layers):
            x, target[f"keys_{index}"], target[f"values_{index}"] = layer.decode_step(
                x,
                cache["target"][f"keys_{index}"],
                cache["target"][f"values_{index}"],
                source[f"keys_{index}"],
                source[f"values_{index}"],
                source["context_mask"],
            )
        if self.norm is not None:
            x = self.norm(x)
        return x, {"source": source, "target": target}
