"""Sinusoidal and learned positions, and the embedding layer that adds them."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.layers.base import Int, Layer, Shape, Tensor, built, require_sizes

# The layouts of sinusoids, by the names of `TransformerConfig.positions`. The first is the paper's.
# In the others all sines come first; Hugging Face's Marian has the second. Marian itself has the
# third, as tensor2tensor and OpenNMT-tf: exponents i / (d/2 - 1), so that the last is 1.
SINUSOIDS = "sinusoidal", "sinusoidal_halves", "sinusoidal_tensor2tensor"


def sinusoidal_positions(
    length: Int,
    d_model: int,
    offset: Int = 0,
    dtype: str = "float32",
    sinusoids: str = "sinusoidal",
) -> Tensor:
    """Return sinusoidal position encodings `(length, D)`, by default sine and cosine interleaved.

    `PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`
    (Vaswani et al. 2017, section 3.5). Computed on the fly, so there is no maximum length.

    Args:
        length, d_model: the number of positions, and D, which is even.
        offset: int or int scalar tensor, the first position.
        dtype: dtype of the result; the angles are always float32.
        sinusoids: one of `SINUSOIDS`.

    Example:
        >>> tt.sinusoidal_positions(100, 8).shape
        TensorShape([100, 8])
    """
    return _encode_positions(ops.arange(length) + offset, d_model, dtype, sinusoids)


def _encode_positions(positions: Tensor, d_model: int, dtype: str, sinusoids: str) -> Tensor:
    """Return the encodings `(…, D)` of positions `(…)`."""
    if d_model % 2 or sinusoids not in SINUSOIDS:
        raise ValueError(
            f"d_model must be even, and sinusoids one of {SINUSOIDS}; received {d_model} and "
            f"{sinusoids!r}."
        )
    columns, half = np.arange(d_model), d_model // 2
    # The number of the wave in each column, and whether the column is a cosine.
    if sinusoids == "sinusoidal":
        waves, is_cosine = columns // 2, columns % 2
    else:
        waves, is_cosine = columns % half, columns // half
    last = d_model - 2 if sinusoids == "sinusoidal_tensor2tensor" else d_model
    exponents = 2 * waves / max(last, 1)
    frequencies = (10000.0**-exponents).astype("float32")
    # cos(x) = sin(x + pi/2): one sine for both keeps the graph of a decoding step small.
    phases = (is_cosine * (math.pi / 2)).astype("float32")
    angles = ops.multiply(ops.cast(positions, "float32")[..., None], frequencies)
    return ops.cast(ops.sin(ops.add(angles, phases)), dtype)


class PositionalEmbedding(Layer):
    """Token embeddings, times `sqrt(d_model)` unless told, plus positions, then dropout.

    Vaswani et al. 2017, sections 3.4 and 3.5. Layers that are given the same `embedding` share its
    matrix, as source, target and output do in the paper. Positions are sinusoids, or rows of a
    trained table (Gehring et al. 2017, section 3.1; Vaswani et al. 2017, table 3, row E).

    Args:
        vocab_size: V.
        d_model: D, even.
        dropout_rate: dropout of the sum, in [0, 1).
        embedding: a built or unbuilt `keras.layers.Embedding` to share, or None for a new one.
        mask_zero: whether the output has an implicit Keras mask, True where the id is not 0.
        position_embedding: a `keras.layers.Embedding` of positions, see `token_embedding`; None
            for sinusoids. TensorFlow raises an error for positions beyond the table only on a CPU.
        sinusoids: one of `SINUSOIDS`, for positions without a table.
        scale: whether to multiply embeddings by `sqrt(d_model)`.
        first_position: the number of the first position in the sinusoids; OpenNMT-tf has 1.

    Call arguments:
        token_ids: int tensor `(B, T)`; the result is float `(B, T, D)`.
        positions: int tensor `(B, T)` or `(T,)`, the tokens' positions; None for 0, 1, 2, ….

    Raises:
        ValueError: without `positions`, `token_ids` is known to be longer than the table; or
            `embedding` has other sizes.

    Example:
        >>> embedding = tt.PositionalEmbedding(vocab_size=100, d_model=8)
        >>> embedding(np.array([[5, 6, 7]])).shape
        TensorShape([1, 3, 8])
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        dropout_rate: float = 0.0,
        embedding: keras.layers.Embedding | None = None,
        mask_zero: bool = False,
        position_embedding: keras.layers.Embedding | None = None,
        sinusoids: str = "sinusoidal",
        scale: bool = True,
        first_position: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocab_size, self.d_model, self.dropout_rate = vocab_size, d_model, dropout_rate
        self.mask_zero, self.sinusoids, self.scale = mask_zero, sinusoids, scale
        self.first_position = first_position
        self.embedding = embedding or token_embedding(vocab_size, d_model, dtype=self.dtype_policy)
        self.position_embedding = position_embedding
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)
        self.input_spec = keras.layers.InputSpec(ndim=2)

    def build(self, token_ids_shape: Shape) -> None:
        require_sizes(self.embedding, self.vocab_size, self.d_model)
        built(self.embedding, token_ids_shape)
        if self.position_embedding is not None:
            built(self.position_embedding, token_ids_shape)

    def call(
        self, token_ids: Tensor, positions: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        if positions is None:
            length, table = token_ids.shape[1], self.position_embedding
            # A GPU would read zeros at positions that the table does not have.
            if table is not None and length is not None and length > table.input_dim:
                raise ValueError(
                    f"PositionalEmbedding has learned {table.input_dim} positions; received "
                    f"token_ids of length {length}. Shorten the ids, or train with more positions."
                )
            positions = ops.arange(ops.shape(token_ids)[1])
        return self.dropout(self._embed(token_ids) + self._encode(positions), training=training)

    def decode_step(self, token_ids: Tensor, index: Int) -> Tensor:
        """Return embeddings `(..., D)` of tokens `(...)` at positions `index`, which broadcast."""
        return self._embed(token_ids) + self._encode(index)

    def _embed(self, token_ids: Tensor) -> Tensor:
        # Quantized embeddings are float32 under mixed policies (Keras 3.15.1).
        embedded = ops.cast(self.embedding(token_ids), self.compute_dtype)
        return embedded * math.sqrt(self.d_model) if self.scale else embedded

    def _encode(self, positions: Int) -> Tensor:
        if self.position_embedding is None:
            if self.first_position:
                positions = positions + self.first_position
            return _encode_positions(positions, self.d_model, self.compute_dtype, self.sinusoids)
        encodings = self.position_embedding(ops.convert_to_tensor(positions, "int32"))
        return ops.cast(encodings, self.compute_dtype)

    def compute_mask(self, token_ids: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        return ops.not_equal(token_ids, 0) if self.mask_zero else previous_mask


def token_embedding(
    vocab_size: int, d_model: int, dtype: Any = None, name: str = "embedding"
) -> keras.layers.Embedding:
    """Return an embedding layer of tokens or positions, whose matrix can also project to logits.

    Rows start with standard deviation `d_model^-0.5`. So tokens times `sqrt(d_model)` have the
    scale of the positions, and a normalised hidden state gives logits of standard deviation 1.
    """
    start = keras.initializers.RandomNormal(stddev=d_model**-0.5)
    return keras.layers.Embedding(vocab_size, d_model, start, dtype=dtype, name=name)
