"""The Transformer: a sequence-to-sequence model of attention alone."""

import keras
from keras import ops

from tf_transformer.layers.decoder import Decoder
from tf_transformer.layers.encoder import Encoder
from tf_transformer.layers.masks import padding_mask
from tf_transformer.layers.output_projection import OutputProjection
from tf_transformer.layers.positions import PositionalEmbedding, token_embedding
from tf_transformer.models.architectures import TransformerConfig


@keras.saving.register_keras_serializable(package="tf_transformer")
class Transformer(keras.Model):
    """The encoder-decoder Transformer (Vaswani et al. 2017).

    All weights exist after the constructor. Like every translation model here it has three ways
    in: a call (teacher forcing), `start_decoding` and `decode_step`.

    Args:
        config: `TransformerConfig`.
        name: str, the model's name.
        trainable: bool.
        dtype: a Keras dtype policy, such as `"mixed_bfloat16"`; None is the global one.

    Call arguments:
        inputs: dict of `source_ids` int `(B, S)` and `target_ids` int `(B, T)`; the target starts
            with the begin id, and both are padded with `config.pad_id`. With `labels`
            int `(B, T)` too, the call returns how well they are predicted instead of logits,
            of which it holds 16 MiB at a time.
        training: bool, whether dropout is applied.
        return_attention_scores: bool, whether to return the attention weights too.

    Returns:
        logits float32 `(B, T, V)`: row `t` predicts the token after `target_ids[:, t]`; or, with
        `labels`, their scores float32 `(B, T, 3)`, as in `layers.token_scores`. With
        `return_attention_scores` also a dict of `encoder` (`(B, H, S, S)` a layer), `decoder`
        (`(B, H, T, T)` a layer) and `cross` (`(B, H, T, S)` a layer).
    """

    def __init__(self, config, *, name="transformer", trainable=True, dtype=None):
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        # For `jit_compile="auto"`: XLA would compile anew for every shape of batch.
        self.supports_jit = False
        self.config = config
        policy = self.dtype_policy
        sizes = dict(
            num_layers=config.num_layers,
            d_model=config.d_model,
            num_heads=config.num_heads,
            d_ff=config.d_ff,
            dropout_rate=config.dropout_rate,
            attention_dropout_rate=config.attention_dropout_rate,
            norm_first=config.norm_first,
            dtype=policy,
        )
        shared = None
        if config.tie_embeddings:
            shared = token_embedding(config.target_vocab_size, config.d_model, dtype=policy)
        self.source_embedding = PositionalEmbedding(
            config.source_vocab_size,
            config.d_model,
            config.dropout_rate,
            shared,
            dtype=policy,
            name="source_embedding",
        )
        self.target_embedding = PositionalEmbedding(
            config.target_vocab_size,
            config.d_model,
            config.dropout_rate,
            shared,
            dtype=policy,
            name="target_embedding",
        )
        self.encoder = Encoder(**sizes, name="encoder")
        self.decoder = Decoder(**sizes, name="decoder")
        self.output_projection = OutputProjection(
            config.target_vocab_size, config.pad_id, shared, name="output_projection"
        )
        self.build()

    def build(self, *_):
        self.source_embedding.build((None, None))
        self.target_embedding.build((None, None))
        self.encoder.build()
        self.decoder.build()
        self.output_projection.build((None, None, self.config.d_model))
        self.built = True

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Nothing, for all is built; Keras would first average a batch over the replicas of a
        strategy, which fails where the first batch does not divide evenly (Keras 3.15.1).
        """

    def call(self, inputs, training=None, return_attention_scores=False):
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        context, context_mask, encoder_weights = self._encode(source_ids, training)
        # Real target tokens come first, so the causal mask hides the padding from all of them.
        hidden, decoder_weights, cross_weights = self.decoder(
            self.target_embedding(target_ids, training=training),
            context,
            context_mask=context_mask,
            training=training,
            return_attention_scores=True,
        )
        output = self.output_projection(hidden, inputs.get("labels"))
        if not return_attention_scores:
            return output
        return output, {
            "encoder": encoder_weights,
            "decoder": decoder_weights,
            "cross": cross_weights,
        }

    def start_decoding(self, source_ids, num_steps=None, beam_size=None):
        """Encodes the source once.

        Args:
            source_ids: int tensor `(B, S)`.
            num_steps: int or int scalar tensor, the most steps there can be, for a memory of
                fixed size, which XLA needs; None for one that grows by a position a step.
            beam_size: int or int scalar tensor, K, hypotheses of each sentence, in rows that
                follow one another (N = B * K); None where each sentence is one row (N = B).

        Returns:
            cache: dict of flat dicts of tensors: `"constants"` and `"source"` `(B, …)`, which
            decoding never changes; `"history"` `(B, …)`, to which each step adds and which is
            never re-ordered; `"target"` `(N, …)`, which belongs to the hypotheses and is
            re-ordered with them.
        """
        context, context_mask, _ = self._encode(source_ids, training=False)
        cache = self.decoder.start_decoding(context, context_mask, num_steps, beam_size)
        if self.config.tie_embeddings and num_steps is None:
            # Laid out for the product once, not in each step; XLA lays out by itself.
            cache["constants"]["output_kernel"], _ = self.output_projection.kernel_and_bias()
        return cache

    def decode_step(self, token_ids, index, cache):
        """Predicts the token after `token_ids`.

        Args:
            token_ids: int tensor `(N,)`, the token at position `index` of each row.
            index: int or int scalar tensor, from 0 (the begin token) on.
            cache: as `start_decoding` or the step before returned it.

        Returns:
            logits float32 `(N, V)`, and the cache for the next step.
        """
        x = self.target_embedding.decode_step(token_ids, index)
        hidden, cache = self.decoder.decode_step(x, index, cache)
        kernel = cache["constants"].get("output_kernel")
        if kernel is None:
            return self.output_projection(hidden), cache
        return ops.matmul(ops.cast(hidden, "float32"), kernel), cache

    def _encode(self, source_ids, training):
        mask = padding_mask(source_ids, self.config.pad_id)
        context, weights = self.encoder(
            self.source_embedding(source_ids, training=training),
            attention_mask=mask,
            training=training,
            return_attention_scores=True,
        )
        return context, mask, weights

    def get_config(self):
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
            "config": self.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "config": TransformerConfig(**config["config"])})
