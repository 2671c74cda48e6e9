"""The encoder: from embedded source tokens to the context."""

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.stack import LayerStack, TransformerLayer


class EncoderLayer(TransformerLayer):
    """Self-attention and a feed-forward network (Vaswani et al. 2017, figure 1, left).

    Args: as in `TransformerLayer`.

    Call arguments:
        x: float tensor `(B, S, D)`.
        attention_mask: see `MultiHeadAttention`; None to attend everywhere.

    Returns:
        float tensor `(B, S, D)`; with `return_attention_scores` also the weights `(B, H, S, S)`.

    Example:
        >>> tt.EncoderLayer(d_model=8, num_heads=2, d_ff=16)(np.ones((1, 5, 8))).shape
        TensorShape([1, 5, 8])
    """

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        x, weights = self._attend_to_self(x, attention_mask, training)
        x = self._transform(x, training)
        return (x, weights) if return_attention_scores else x


class Encoder(LayerStack):
    """A stack of `EncoderLayer`s, with a final norm where they are norm-first.

    Args: as in `LayerStack`.

    Call arguments and returns: as in `EncoderLayer`; the weights are a list, one item per layer.

    Example:
        >>> layers = [tt.EncoderLayer(d_model=8, num_heads=2, d_ff=16) for _ in range(2)]
        >>> context, weights = tt.Encoder(layers)(np.ones((1, 5, 8)), return_attention_scores=True)
        >>> context.shape, len(weights), weights[0].shape
        (TensorShape([1, 5, 8]), 2, TensorShape([1, 2, 5, 5]))
    """

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        outputs = self._run(x, attention_mask=attention_mask, training=training)
        return outputs if return_attention_scores else outputs[0]
