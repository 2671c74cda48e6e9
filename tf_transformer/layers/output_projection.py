"""From hidden states to logits, or to the statistics of labels."""

from typing import Any, Self

import keras
from keras import ops

from tf_transformer.layers.base import DType, HiddenStateLayer, Shape, Tensor, ensure_built
from tf_transformer.layers.token_statistics import projected_token_statistics


@keras.saving.register_keras_serializable(package="tf_transformer")
class OutputProjection(keras.layers.Layer):
    """Projects hidden states to a logit for each token of the vocabulary.

    Computes in float32 whatever the dtype policy, which sets the dtype of the weights only.

    Args:
        vocab_size: V.
        pad_id: the id of padding in `labels`.
        embedding: `keras.layers.Embedding` of V rows whose transposed matrix projects (Press &
            Wolf 2016), without a bias; None for a kernel `(D, V)` and a bias `(V,)` of its own.
            The embedding may be quantized.
        name, trainable, dtype: as in `keras.layers.Layer`.

    Call arguments:
        hidden: float tensor `(..., D)`; `(B, T, D)` with `labels`.
        labels: int tensor `(B, T)`, or None.

    Returns:
        logits float32 `(..., V)`; with `labels` their statistics float32 `(B, T, 3)` (see
        `layers.token_statistics`), for which only a part of the logits is in memory at a time.
    """

    def __init__(
        self,
        vocab_size: int,
        pad_id: int = 0,
        embedding: keras.layers.Embedding | None = None,
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DType = None,
    ) -> None:
        super().__init__(name=name, trainable=trainable, dtype=dtype, autocast=False)
        self.vocab_size = vocab_size
        self.pad_id = pad_id
        self.embedding = embedding
        self.supports_masking = True

    def build(self, hidden_shape: Shape) -> None:
        if self.embedding is None:
            shape = (hidden_shape[-1], self.vocab_size)
            self.kernel = self.add_weight(shape, "glorot_uniform", name="kernel")
            self.bias = self.add_weight(shape[1:], "zeros", name="bias")
            return
        if hidden_shape[-1] != self.embedding.output_dim:
            raise ValueError(
                f"OutputProjection needs hidden of shape (..., d_model={self.embedding.output_dim})"
                f", the width of its embedding; received shape {tuple(hidden_shape)}."
            )
        ensure_built(self.embedding, (None, None))

    def call(self, hidden: Tensor, labels: Tensor | None = None) -> Tensor:
        kernel, bias = self.kernel_and_bias()
        if labels is not None:
            return projected_token_statistics(labels, hidden, kernel, bias, self.pad_id)
        logits = ops.matmul(ops.cast(hidden, "float32"), kernel)
        return logits if bias is None else logits + bias

    def kernel_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """Returns the kernel `(D, V)` and the bias `(V,)` or None, float32."""
        if self.embedding is None:
            return ops.cast(self.kernel, "float32"), ops.cast(self.bias, "float32")
        if self.embedding.quantization_mode is None:
            matrix = self.embedding.embeddings
        else:  # a look-up of every token dequantizes
            matrix = self.embedding(ops.arange(self.vocab_size))
        return ops.transpose(ops.cast(matrix, "float32")), None

    compute_output_spec = HiddenStateLayer.compute_output_spec

    def compute_output_shape(self, hidden_shape: Shape, labels_shape: Shape | None = None) -> Shape:
        return (*hidden_shape[:-1], self.vocab_size if labels_shape is None else 3)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "pad_id": self.pad_id,
            "embedding": keras.saving.serialize_keras_object(self.embedding),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return cls(**{**config, "embedding": embedding})
