"""The model of TensorFlow's Transformer tutorial, rebuilt from our layers, and a task for it."""

import keras
import numpy as np

import tf_transformer as tt

VOCAB_SIZE, BOS, EOS = 16, 2, 3


@keras.saving.register_keras_serializable(package="tutorial")
class TutorialTransformer(keras.Model):
    """An encoder and a decoder, each with an embedding of its own, and a dense layer for logits.

    Call arguments:
        inputs: the tuple `(source_ids, target_ids)`, int `(B, S)` and `(B, T)`, padded with 0.
    """

    def __init__(
        self, vocab_size=VOCAB_SIZE, num_layers=1, d_model=8, num_heads=2, d_ff=16,
        dropout_rate=0.0, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.settings = {
            "vocab_size": vocab_size, "num_layers": num_layers, "d_model": d_model,
            "num_heads": num_heads, "d_ff": d_ff, "dropout_rate": dropout_rate,
        }  # fmt: skip
        sizes, dtype = (d_model, num_heads, d_ff, dropout_rate), self.dtype_policy
        self.source_embedding, self.target_embedding = (
            tt.PositionalEmbedding(vocab_size, d_model, dropout_rate, dtype=dtype) for _ in range(2)
        )
        self.encoder, self.decoder = (
            stack([layer(*sizes, dtype=dtype) for _ in range(num_layers)], dtype=dtype)
            for stack, layer in ((tt.Encoder, tt.EncoderLayer), (tt.Decoder, tt.DecoderLayer))
        )
        self.final_layer = keras.layers.Dense(vocab_size, dtype=dtype)

    def call(self, inputs, training=None):
        source_ids, target_ids = inputs
        mask = tt.padding_mask(source_ids, pad_id=0)
        context = self.encoder(
            self.source_embedding(source_ids, training=training),
            attention_mask=mask, training=training,
        )  # fmt: skip
        hidden = self.decoder(
            self.target_embedding(target_ids, training=training), context,
            cross_attention_mask=mask, training=training,
        )  # fmt: skip
        return self.final_layer(hidden)

    def get_config(self):
        return {**super().get_config(), **self.settings}


def copy_batch(num_sentences=8, longest=5, seed=0):
    """`((source_ids, target_ids), labels)` of sentences that are to be copied."""
    rng = np.random.default_rng(seed)
    sources, targets, labels = np.zeros((3, num_sentences, longest + 1), "int32")
    for row, length in enumerate(rng.integers(1, longest + 1, num_sentences)):
        words = rng.integers(EOS + 1, VOCAB_SIZE, length)
        sources[row, : length + 1] = labels[row, : length + 1] = [*words, EOS]
        targets[row, : length + 1] = [BOS, *words]
    return (sources, targets), labels
