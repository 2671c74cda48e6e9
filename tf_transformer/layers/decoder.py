"""The decoder: from embedded target tokens and context to hidden states."""

import keras
from keras import ops

from tf_transformer.layers.attention import CausalSelfAttention, CrossAttention, attention_bias
from tf_transformer.layers.base import Shape, Tensor, ensure_built
from tf_transformer.layers.block import LayerStack, TransformerLayer
from tf_transformer.layers.decoding_step import DecodingStep, no_steps, step_through
from tf_transformer.layers.masks import expand_mask
from tf_transformer.layers.restricted_attention import RestrictedCausalSelfAttention


@keras.saving.register_keras_serializable(package="tf_transformer")
class DecoderLayer(TransformerLayer):
    """Causal self-attention, cross-attention, feed-forward (Vaswani et al. 2017, figure 1, right).

    Args: as in `TransformerLayer`.

    Call arguments:
        x: float tensor `(B, T, D)`.
        context: float tensor `(B, S, D)`.
        attention_mask: bool or integer tensor that broadcasts to `(B, H, T, T)`, see
            `MultiHeadAttention`; it applies in addition to the causal mask. None for the causal
            mask alone.
        cross_attention_mask: bool or integer tensor that broadcasts to `(B, H, T, S)`, usually the
            context's padding mask `(B, 1, S)`; None for everywhere.
        training: whether dropout is applied.
        return_attention_scores: whether to return the attention weights too.

    Returns:
        float tensor `(B, T, D)`; with `return_attention_scores` also the weights of self-attention
        `(B, H, T, T)` and of cross-attention `(B, H, T, S)`.
    """

    def _create_sublayers(self) -> None:
        self.self_attention = self._self_attention(
            CausalSelfAttention, RestrictedCausalSelfAttention
        )
        self.self_residual = self._residual("self_residual")
        self.cross_attention = self._attention(CrossAttention, "cross_attention")
        self.cross_residual = self._residual("cross_residual")
        self.feed_forward = self._feed_forward("feed_forward")
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def build(self, x_shape: Shape, context_shape: Shape) -> None:
        self.check_shapes(x=x_shape, context=context_shape)
        ensure_built(self.cross_attention, x_shape, context_shape)
        for layer in (
            self.self_attention, self.self_residual, self.cross_residual,
            self.feed_forward, self.feed_forward_residual,
        ):  # fmt: skip
            ensure_built(layer, x_shape)

    def call(
        self,
        x: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        self.check_shapes(x=x.shape, context=context.shape)
        attended = self.self_attention(
            self.self_residual.pre(x),
            attention_mask=attention_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        if return_attention_scores:
            attended, self_weights = attended
        x = self.self_residual.post(x, attended, training)
        attended = self.cross_attention(
            self.cross_residual.pre(x),
            context,
            attention_mask=cross_attention_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        if return_attention_scores:
            attended, cross_weights = attended
        x = self.cross_residual.post(x, attended, training)
        transformed = self.feed_forward(self.feed_forward_residual.pre(x))
        x = self.feed_forward_residual.post(x, transformed, training)
        return (x, self_weights, cross_weights) if return_attention_scores else x

    def compute_output_shape(self, x_shape: Shape, context_shape: Shape) -> Shape:
        return tuple(x_shape)

    def decode_step(
        self,
        x: Tensor,
        self_keys: Tensor,
        self_values: Tensor,
        cross_keys: Tensor,
        cross_values: Tensor,
        bias: Tensor,
        step: DecodingStep,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the newest position of each hypothesis.

        Args:
            x: float tensor `(N, D)`.
            self_keys, self_values: float tensors `(B, H, t * K, d_k)`, the KV cache; of the latest
                positions only where attention is restricted and the cache grows.
            cross_keys, cross_values: float tensors `(B, H, S, d_k)`.
            bias: float tensor `(B, 1, 1, S)` that masks the context's padding.
            step: what the layers share in this step.

        Returns:
            output `(N, D)`, and self-attention's keys and values with the newest position.
        """
        attended, self_keys, self_values = self.self_attention.decode_step(
            self.self_residual.pre(x), self_keys, self_values, step
        )
        x = self.self_residual.post(x, attended)
        attended = self.cross_attention.decode_step(
            self.cross_residual.pre(x), cross_keys, cross_values, bias, step.beams
        )
        x = self.cross_residual.post(x, attended)
        transformed = self.feed_forward(self.feed_forward_residual.pre(x))
        return self.feed_forward_residual.post(x, transformed), self_keys, self_values


@keras.saving.register_keras_serializable(package="tf_transformer")
class Decoder(LayerStack):
    """A stack of `DecoderLayer`s, with a final norm where they are norm-first.

    Args: as in `LayerStack`.

    Call arguments: as in `DecoderLayer`.

    Returns:
        float tensor `(B, T, D)`; with `return_attention_scores` also two lists with the weights of
        each layer: self-attention `(B, H, T, T)` and cross-attention `(B, H, T, S)`.
    """

    layer_class = DecoderLayer

    def build(self, x_shape: Shape, context_shape: Shape) -> None:
        self.check_shapes(x=x_shape, context=context_shape)
        self._build_layers(x_shape, context_shape)

    def call(
        self,
        x: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, list[Tensor], list[Tensor]]:
        all_self_weights, all_cross_weights = [], []
        for layer in self.layers:
            x = layer(
                x,
                context,
                attention_mask=attention_mask,
                cross_attention_mask=cross_attention_mask,
                training=training,
                return_attention_scores=return_attention_scores,
            )
            if return_attention_scores:
                x, self_weights, cross_weights = x
                all_self_weights.append(self_weights)
                all_cross_weights.append(cross_weights)
        if self.norm is not None:
            x = self.norm(x)
        return (x, all_self_weights, all_cross_weights) if return_attention_scores else x

    def compute_output_shape(self, x_shape: Shape, context_shape: Shape) -> Shape:
        return tuple(x_shape)

    def start_decoding(
        self,
        context: Tensor,
        cross_attention_mask: Tensor,
        num_steps: int | Tensor | None = None,
        beam_size: int | Tensor | None = None,
    ) -> dict[str, dict[str, Tensor]]:
        """Computes what depends on the context alone, and an empty KV cache.

        Args:
            context: float tensor `(B, S, D)`.
            cross_attention_mask: bool tensor `(B, 1, S)`.
            num_steps: int or int scalar tensor, the maximum number of steps, for a KV cache of
                fixed size; None for one that grows by a position each step.
            beam_size: int or int scalar tensor, K hypotheses for each sentence, in consecutive
                rows (N = B * K); None for one row for each sentence (N = B).

        Returns:
            dict of flat dicts of tensors: `"constants"` and `"source"` `(B, …)`, which never
            change; `"history"` `(B, …)`, which each step extends and which is never re-ordered;
            `"target"` `(N, …)`, which is re-ordered with the hypotheses.
        """
        batch_size = ops.shape(context)[0]
        mask = expand_mask(cross_attention_mask, (context.shape[0], 1, 1, context.shape[1]))
        source = {"bias": attention_bias(mask, self.compute_dtype)}
        constants, target, positions = no_steps(batch_size, num_steps, beam_size)
        history = {}
        for index, layer in enumerate(self.layers):
            keys, values = layer.cross_attention.start_decoding(context)
            source[f"keys_{index}"], source[f"values_{index}"] = keys, values
            keys, values = layer.self_attention.start_decoding(positions, batch_size)
            history[f"keys_{index}"], history[f"values_{index}"] = keys, values
        return {"constants": constants, "source": source, "history": history, "target": target}

    def decode_step(
        self, x: Tensor, index: int | Tensor, cache: dict[str, dict[str, Tensor]]
    ) -> tuple[Tensor, dict[str, dict[str, Tensor]]]:
        """Computes the newest position of each hypothesis.

        Args:
            x: float tensor `(N, D)`.
            index: int or int scalar tensor, its position.
            cache: as returned by `start_decoding` or the previous step.

        Returns:
            hidden state `(N, D)` and the cache for the next step.
        """
        x, cache = step_through(self.layers, x, index, cache, self.compute_dtype)
        return (x if self.norm is None else self.norm(x)), cache
