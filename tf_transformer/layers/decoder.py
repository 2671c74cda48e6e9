"""The decoder: from embedded target tokens and context to hidden states."""

from typing import Any

from keras import ops

from tf_transformer.layers.attention import CausalSelfAttention, CrossAttention
from tf_transformer.layers.base import Shape, Tensor
from tf_transformer.layers.kv_cache import Cache, empty_cache
from tf_transformer.layers.masks import attention_bias
from tf_transformer.layers.stack import LayerStack, TransformerLayer


class DecoderLayer(TransformerLayer):
    """Causal self-attention, cross-attention, feed-forward (Vaswani et al. 2017, figure 1, right).

    Args: as in `TransformerLayer`.

    Call arguments:
        x: float tensor `(B, T, D)`.
        context: float tensor `(B, S, D)`.
        attention_mask: see `MultiHeadAttention`; it applies in addition to the causal mask.
        cross_attention_mask: a mask of the context, usually its padding mask `(B, 1, S)`.

    Returns:
        float tensor `(B, T, D)`; with `return_attention_scores` also the weights of self-attention
        `(B, H, T, T)` and of cross-attention `(B, H, T, S)`.

    Example:
        >>> layer = tt.DecoderLayer(d_model=8, num_heads=2, d_ff=16)
        >>> layer(np.ones((1, 5, 8)), np.ones((1, 3, 8))).shape
        TensorShape([1, 5, 8])
    """

    self_attention_class = CausalSelfAttention

    def _create_attention(self) -> None:
        super()._create_attention()
        self.cross_attention = self._attention(CrossAttention, "cross_attention")
        self.cross_residual = self._residual("cross_residual")

    def build(self, x_shape: Shape, context_shape: Shape) -> None:
        super().build(x_shape)
        self.cross_attention.build(x_shape, context_shape)
        self.cross_residual.build(x_shape)

    def call(
        self,
        x: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        x, self_weights = self._attend_to_self(x, attention_mask, training)
        options = {"training": training, "return_attention_scores": True}
        x_in, mask = self.cross_residual.pre(x), cross_attention_mask
        attended, cross_weights = self.cross_attention(x_in, context, mask, **options)
        x = self._transform(self.cross_residual.post(x, attended, training), training)
        return (x, self_weights, cross_weights) if return_attention_scores else x

    def start_decoding(self, context: Tensor, attention_mask: None = None) -> tuple[Tensor, ...]:
        """Return the context `(B, S, D)`, and its keys and values for `decode_step`."""
        return context, *self.cross_attention.start_decoding(context)

    def decode_step(
        self, x: Tensor, history: tuple[Tensor, Tensor], source: tuple[Any, ...]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Compute the newest position of each row.

        Takes the rows `x` `(N, D)`, the KV cache `history`, and as `source` the context's keys and
        values `(N, H, S, d_k)` and the bias `(N, 1, 1, S)` that masks its padding. Returns the
        output `(N, D)`, and the KV cache with the newest position.
        """
        x_in = self.self_residual.pre(x)
        attended, *history = self.self_attention.decode_step(x_in, *history)
        x = self.self_residual.post(x, attended)
        attended = self.cross_attention.decode_step(self.cross_residual.pre(x), *source)
        return self._transform(self.cross_residual.post(x, attended)), history


class DecodingStack(LayerStack):
    """Base class of stacks that decode step by step, given a context or a prefix."""

    def start_decoding(
        self, context: Tensor, cross_attention_mask: Tensor, attention_mask: Tensor | None = None
    ) -> Cache:
        """Return a cache: what depends only on the context `(B, S, D)`, and an empty KV cache.

        `cross_attention_mask` `(B, 1, S)` says where decoding may attend; `attention_mask` is the
        self-attention mask of a prefix. The rest is as in `Transformer.start_decoding`.
        """
        dtype = self.compute_dtype
        cache = empty_cache(self.layers, ops.shape(context)[0], dtype)
        cache["source"]["bias"] = attention_bias(cross_attention_mask[:, None], dtype)
        for number, layer in enumerate(self.layers):
            context, keys, values = layer.start_decoding(context, attention_mask)
            cache["source"].update({f"keys_{number}": keys, f"values_{number}": values})
        return cache

    def decode_step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Compute hidden states `(N, D)` from the inputs `(N, D)` at the newest position.

        Takes the cache of `start_decoding` or of the previous step, and also returns the next one.
        """
        source, target = cache["source"], {}
        for number, layer in enumerate(self.layers):
            names = f"keys_{number}", f"values_{number}"
            past = tuple(cache["target"][name] for name in names)
            known = *(source[name] for name in names), source["bias"]
            x, new = layer.decode_step(x, past, known)
            target.update(zip(names, new, strict=True))
        return self._normalised(x), {**cache, "target": target}


class Decoder(DecodingStack):
    """A stack of `DecoderLayer`s, with a final norm where they are norm-first.

    Args: as in `LayerStack`.

    Call arguments and returns: as in `DecoderLayer`; the weights are two lists, one item per layer.

    Example:
        >>> layers = [tt.DecoderLayer(d_model=8, num_heads=2, d_ff=16) for _ in range(2)]
        >>> decoder = tt.Decoder(layers)
        >>> decoder(np.ones((1, 5, 8)), np.ones((1, 3, 8))).shape
        TensorShape([1, 5, 8])
    """

    def build(self, x_shape: Shape, context_shape: Shape) -> None:
        super().build(x_shape, context_shape)

    def call(
        self,
        x: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, list[Tensor], list[Tensor]]:
        masks = {"attention_mask": attention_mask, "cross_attention_mask": cross_attention_mask}
        outputs = self._run(x, context, training=training, **masks)
        return outputs if return_attention_scores else outputs[0]
