"""Positions: what tells attention, blind to order, where a token stands."""

import math

import keras
import numpy as np
from keras import ops

from tf_transformer.layers.dropout import Dropout


def _check_even(d_model):
    if d_model <= 0 or d_model % 2:
        raise ValueError(
            f"d_model must be a positive even number, since sines and cosines come in pairs; "
            f"received d_model={d_model}. Use {d_model + 1}, for example."
        )


def sinusoidal_positions(length, d_model, offset=0, dtype="float32"):
    """Sinusoidal position encodings, sine and cosine interleaved.

    `PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos(p / 10000^(2i/d))`
    (Vaswani et al. 2017, section 3.5). Computed where it is used, so no length is too long.

    Args:
        length: int or int scalar tensor, how many positions.
        d_model: even int, D.
        offset: int or int scalar tensor, the first position.
        dtype: dtype of the result; the angles are always float32.

    Returns:
        tensor `(length, D)`.

    Raises:
        ValueError: if `d_model` is odd.
    """
    _check_even(d_model)
    exponents = np.arange(d_model) // 2 * 2 / d_model
    frequencies = (10000.0**-exponents).astype("float32")
    # cos(x) = sin(x + pi/2): one sine for both keeps the graph of a decoding step small.
    phases = (np.arange(d_model) % 2 * (math.pi / 2)).astype("float32")
    positions = ops.cast(ops.arange(length) + offset, "float32")
    return ops.cast(ops.sin(positions[:, None] * frequencies + phases), dtype)


@keras.saving.register_keras_serializable(package="tf_transformer")
class PositionalEmbedding(keras.layers.Layer):
    """Token embeddings times `sqrt(d_model)`, plus sinusoidal positions, then dropout.

    Vaswani et al. 2017, sections 3.4 and 3.5. The embedding matrix may belong to another layer:
    with `embedding` the paper's sharing between source, target and output is one line.

    Args:
        vocab_size: int, V.
        d_model: even int, D.
        dropout_rate: float in [0, 1), applied to the sum.
        embedding: a built or unbuilt `keras.layers.Embedding` to share, or None.

    Call arguments:
        token_ids: int tensor `(B, T)`.
        training: bool, whether dropout is applied.

    Returns:
        tensor `(B, T, D)`.

    Raises:
        ValueError: if `d_model` is odd.
    """

    def __init__(
        self, vocab_size, d_model, dropout_rate=0.0, embedding=None, *, name=None,
        trainable=True, dtype=None,
    ):  # fmt: skip
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        _check_even(d_model)
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.dropout_rate = dropout_rate
        self.embedding = embedding or token_embedding(vocab_size, d_model, dtype=self.dtype_policy)
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, token_shape):
        if not self.embedding.built:
            self.embedding.build(token_shape)

    def call(self, token_ids, training=None):
        embedded = self.embedding(token_ids) * math.sqrt(self.d_model)
        positions = sinusoidal_positions(
            ops.shape(token_ids)[1], self.d_model, dtype=self.compute_dtype
        )
        return self.dropout(embedded + positions, training=training)

    def decode_step(self, token_ids, index):
        """Embeds the token `(N,)` that each row has at position `index`: `(N, D)`."""
        embedded = self.embedding(token_ids) * math.sqrt(self.d_model)
        return embedded + sinusoidal_positions(1, self.d_model, index, dtype=self.compute_dtype)

    def compute_output_shape(self, token_shape):
        return (*token_shape, self.d_model)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "dropout_rate": self.dropout_rate,
            "embedding": keras.saving.serialize_keras_object(self.embedding),
        }

    @classmethod
    def from_config(cls, config):
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return cls(**{**config, "embedding": embedding})


def token_embedding(vocab_size, d_model, dtype=None, name="embedding"):
    """An embedding matrix that can also project back to logits, see `OutputProjection`.

    Rows start with deviation `d_model^-0.5`: times `sqrt(d_model)` they have the scale of the
    positions, and a normalised hidden state gives logits of deviation 1.

    Returns:
        `keras.layers.Embedding`.
    """
    return keras.layers.Embedding(
        vocab_size,
        d_model,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
        dtype=dtype,
        name=name,
    )
