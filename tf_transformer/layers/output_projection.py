"""From hidden states to logits, or to how well they predict labels."""

import keras
from keras import ops

from tf_transformer.layers.token_scores import projected_token_scores


@keras.saving.register_keras_serializable(package="tf_transformer")
class OutputProjection(keras.layers.Layer):
    """Projects hidden states to a logit for each token of the vocabulary, float32 always.

    Args:
        vocab_size: int, V.
        pad_id: int, the id of padding in `labels`.
        embedding: `keras.layers.Embedding` of V rows whose transposed matrix projects (Press &
            Wolf 2016), without a bias; None for a kernel `(D, V)` and a bias `(V,)` of its own.
        name: str, the layer's name.
        trainable: bool.

    Call arguments:
        hidden: float tensor `(B, T, D)`; without `labels` also `(N, D)`.
        labels: int tensor `(B, T)`, or None.

    Returns:
        logits float32 `(B, T, V)`; with labels their scores float32 `(B, T, 3)` (see
        `layers.token_scores`), for which few of the logits are in memory at a time.
    """

    def __init__(self, vocab_size, pad_id=0, embedding=None, *, name=None, trainable=True):
        super().__init__(name=name, trainable=trainable, dtype="float32")
        self.vocab_size = vocab_size
        self.pad_id = pad_id
        self.embedding = embedding

    def build(self, hidden_shape):
        if self.embedding is None:
            shape = (hidden_shape[-1], self.vocab_size)
            self.kernel = self.add_weight(shape, "glorot_uniform", name="kernel")
            self.bias = self.add_weight(shape[1:], "zeros", name="bias")
        elif not self.embedding.built:
            self.embedding.build((None, None))

    def call(self, hidden, labels=None):
        kernel, bias = self.kernel_and_bias()
        if labels is not None:
            return projected_token_scores(labels, hidden, kernel, bias, self.pad_id)
        logits = ops.matmul(hidden, kernel)
        return logits if bias is None else logits + bias

    def kernel_and_bias(self):
        """The kernel `(D, V)` and the bias `(V,)` or None, float32."""
        if self.embedding is None:
            return self.kernel, self.bias
        return ops.transpose(ops.cast(self.embedding.embeddings, "float32")), None

    def compute_output_shape(self, hidden_shape, labels_shape=None):
        return (*hidden_shape[:-1], self.vocab_size if labels_shape is None else 3)

    def get_config(self):
        return {
            "name": self.name,
            "trainable": self.trainable,
            "vocab_size": self.vocab_size,
            "pad_id": self.pad_id,
            "embedding": keras.saving.serialize_keras_object(self.embedding),
        }

    @classmethod
    def from_config(cls, config):
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return cls(**{**config, "embedding": embedding})
