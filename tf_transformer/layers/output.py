"""The output layer: a logit for each token of the vocabulary."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.base import (
    Activation,
    Layer,
    Shape,
    Tensor,
    built,
    on_rows,
    require_sizes,
)
from tf_transformer.layers.norm import LayerNorm


class OutputTransform(Layer):
    """A layer with an activation, and a norm, before the output matrix (Devlin et al. 2019).

    Args: as in `TransformerLayer`.

    Maps a float tensor `(..., D)` to one of the same shape.

    Example:
        >>> transform = tt.OutputTransform(d_model=8, activation="gelu")
        >>> projection = tt.OutputProjection(vocab_size=100, transform=transform)
        >>> projection(np.ones((1, 5, 8))).shape
        TensorShape([1, 5, 100])
    """

    def __init__(
        self,
        d_model: int,
        activation: Activation = "relu",
        layer_norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.d_model, self.activation = d_model, activation
        self.layer_norm_epsilon, dtype = layer_norm_epsilon, self.dtype_policy
        self.dense = keras.layers.Dense(d_model, activation, dtype=dtype, name="dense")
        self.norm = LayerNorm(epsilon=layer_norm_epsilon, dtype=dtype, name="norm")

    def build(self, hidden_shape: Shape) -> None:
        self.dense.build((None, self.d_model))
        self.norm.build((None, None, self.d_model))

    def call(self, hidden: Tensor) -> Tensor:
        return self.norm(on_rows(self.dense, hidden))


class OutputProjection(Layer):
    """Projection of hidden states to a logit for each token of the vocabulary.

    Computes in float32, except that in training the product has the precision of `hidden`; it may
    be a quarter of all operations. The dtype policy sets only the dtype of the weights.

    Args:
        vocab_size: V.
        embedding: `keras.layers.Embedding` of V rows whose transposed matrix projects (Press &
            Wolf 2016); None for a separate kernel `(D, V)` and bias `(V,)`. The embedding may be
            quantized.
        tied_bias: whether there is a bias `(V,)` with `embedding`, too.
        transform: a layer that hidden states pass before the projection, such as an
            `OutputTransform`; None for none.

    Call arguments:
        hidden: float tensor `(..., D)`.
        training: whether the product may be in the precision of `hidden`.

    Returns:
        logits, float32 `(..., V)`.

    Example:
        >>> embedding = keras.layers.Embedding(100, 8)
        >>> hidden = embedding(np.array([[5, 6, 7]]))
        >>> tt.OutputProjection(vocab_size=100, embedding=embedding)(hidden).shape
        TensorShape([1, 3, 100])
    """

    def __init__(
        self,
        vocab_size: int,
        embedding: keras.layers.Embedding | None = None,
        tied_bias: bool = False,
        transform: keras.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.vocab_size, self.embedding = vocab_size, embedding
        self.tied_bias, self.transform = tied_bias, transform
        self.bias = None

    def build(self, hidden_shape: Shape) -> None:
        shape = (hidden_shape[-1], self.vocab_size)
        if self.transform is not None:
            built(self.transform, hidden_shape)
        if self.embedding is not None:
            # A product with another D is an error by itself.
            require_sizes(self.embedding, self.vocab_size, self.embedding.output_dim)
            built(self.embedding, (None, None))
        else:
            self.kernel = self.add_weight(shape, "glorot_uniform", name="kernel")
        if self.embedding is None or self.tied_bias:
            self.bias = self.add_weight(shape[1:], "zeros", name="bias")

    def call(self, hidden: Tensor, training: bool | None = None) -> Tensor:
        dtype = keras.backend.standardize_dtype(hidden.dtype) if training else "float32"
        return self._logits(hidden, self.kernel_and_bias()[0], dtype)

    def _logits(self, hidden: Tensor, kernel: Tensor, dtype: str = "float32") -> Tensor:
        hidden = hidden if self.transform is None else self.transform(hidden)
        logits = ops.matmul(ops.cast(hidden, dtype), ops.cast(kernel, dtype))
        logits = ops.cast(logits, "float32")
        return logits if self.bias is None else logits + ops.cast(self.bias, "float32")

    def kernel_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """Return the kernel `(D, V)` and the bias `(V,)` or None, float32."""
        bias = None if self.bias is None else ops.cast(self.bias, "float32")
        if self.embedding is None:
            return ops.cast(self.kernel, "float32"), bias
        if self.embedding.quantization_mode is None:
            matrix = self.embedding.embeddings
        else:  # looking up every token dequantizes the matrix
            matrix = self.embedding(ops.arange(self.vocab_size))
        return ops.transpose(ops.cast(matrix, "float32")), bias

    def start_decoding(self) -> dict[str, Tensor]:
        """Return a cache's constants: a tied matrix, transposed once for all steps."""
        if self.embedding is None:
            return {}
        return {"output_kernel": self.kernel_and_bias()[0]}

    def decode_step(self, hidden: Tensor, constants: dict[str, Tensor]) -> Tensor:
        """Return the logits `(N, V)` of hidden states `(N, D)`, given a cache's constants."""
        if "output_kernel" not in constants:
            return self(hidden)
        return self._logits(hidden, constants["output_kernel"])
