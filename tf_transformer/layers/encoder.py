"""The encoder: from embedded source tokens to the context."""

import keras

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.stack import LayerStack, TransformerLayer


@keras.saving.register_keras_serializable(package="tf_transformer")
class EncoderLayer(TransformerLayer):
    """Self-attention and a feed-forward network (Vaswani et al. 2017, figure 1, left).

    Args: as in `TransformerLayer`.

    Call arguments:
        x: float tensor `(B, S, D)`.
        attention_mask: see `MultiHeadAttention`; None to attend everywhere.

    Returns:
        float tensor `(B, S, D)`; with `return_attention_scores` also the weights `(B, H, S, S)`.
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


@keras.saving.register_keras_serializable(package="tf_transformer")
class Encoder(LayerStack):
    """A stack of `EncoderLayer`s, with a final norm where they are norm-first.

    Args: as in `LayerStack`.

    Call arguments and returns: as in `EncoderLayer`; the weights are a list, one item per layer.
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
