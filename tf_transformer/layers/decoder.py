"""The decoder: embedded target tokens and context become hidden states."""

import keras
from keras import ops

from tf_transformer.layers.attention import CausalSelfAttention, CrossAttention, attention_bias
from tf_transformer.layers.block import Block, Stack
from tf_transformer.layers.decoding_step import DecodingStep


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

    def decode_step(self, x, self_keys, self_values, cross_keys, cross_values, bias, step):
        """The newest position of each row, `x` `(N, D)`.

        Args:
            self_keys, self_values: tensors `(B, H, t * K, d_k)`, the positions before it.
            cross_keys, cross_values: tensors `(B, H, S, d_k)`.
            bias: tensor `(B, 1, 1, S)` that hides the context's padding.
            step: `DecodingStep`.

        Returns:
            output `(N, D)`, and self-attention's keys and values with the new position.
        """
        attended, self_keys, self_values = self.self_attention.decode_step(
            self.self_residual.enter(x), self_keys, self_values, step
        )
        x = self.self_residual.leave(x, attended)
        attended = self.cross_attention.decode_step(
            self.cross_residual.enter(x), cross_keys, cross_values, bias, step.beams
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

    def start_decoding(self, context, context_mask, num_steps=None, beam_size=None):
        """Everything of the decoder that depends on the context alone, and an empty memory.

        Args:
            context: tensor `(B, S, D)`.
            context_mask: bool tensor `(B, 1, S)`.
            num_steps: int or int scalar tensor, the most steps there can be, for a memory of
                fixed size; None for one that grows by a position a step.
            beam_size: int or int scalar tensor, K, hypotheses of a sentence, in rows that follow
                one another; None where each sentence is one row.

        Returns:
            dict of flat dicts of tensors: `"constants"` and `"source"` `(B, …)`, which decoding
            never changes; `"history"` `(B, …)`, to which each step adds and which is never
            re-ordered; `"target"` `(N, …)`, which belongs to the hypotheses and is re-ordered
            with them.
        """
        batch_size = ops.shape(context)[0]
        source = {"bias": attention_bias(context_mask, self.compute_dtype)}
        constants, history, target, positions = {}, {}, {}, 0
        if num_steps is not None:
            constants["steps"], positions = ops.arange(num_steps, dtype="int32"), num_steps
        if beam_size is not None:
            constants["beams"] = ops.arange(beam_size, dtype="int32")
            target["ancestors"] = ops.zeros((batch_size * beam_size, positions), "int32")
            positions = positions * beam_size
        for index, layer in enumerate(self.layers):
            keys, values = layer.cross_attention.start_decoding(context)
            source[f"keys_{index}"], source[f"values_{index}"] = keys, values
            keys, values = layer.self_attention.start_decoding(positions, batch_size)
            history[f"keys_{index}"], history[f"values_{index}"] = keys, values
        return {"constants": constants, "source": source, "history": history, "target": target}

    def decode_step(self, x, index, cache):
        """The newest position of each row.

        Args:
            x: tensor `(N, D)`.
            index: int or int scalar tensor, its position.
            cache: as `start_decoding` or the step before returned it.

        Returns:
            hidden state `(N, D)` and the cache for the next step.
        """
        source, past, history = cache["source"], cache["history"], {}
        step = DecodingStep.at(index, cache["constants"], cache["target"], self.compute_dtype)
        for number, layer in enumerate(self.layers):
            keys, values = f"keys_{number}", f"values_{number}"
            x, history[keys], history[values] = layer.decode_step(
                x, past[keys], past[values], source[keys], source[values], source["bias"], step
            )
        if self.norm is not None:
            x = self.norm(x)
        target = {} if step.ancestors is None else {"ancestors": step.ancestors}
        return x, {**cache, "history": history, "target": target}
