"""The Transformer: a sequence-to-sequence model based on attention alone."""

from collections.abc import Mapping

import keras

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.decoder import Decoder, DecoderLayer
from tf_transformer.layers.encoder import Encoder, EncoderLayer
from tf_transformer.layers.masks import padding_mask
from tf_transformer.layers.positions import (
    PositionalEmbedding,
    position_embedding,
    token_embedding,
)
from tf_transformer.models.base import Cache, SequenceModel, split_inputs
from tf_transformer.models.configs import TransformerConfig

ACTIVATIONS = {
    "relu": keras.activations.relu,
    "gelu": keras.activations.gelu,
    "swish": keras.activations.silu,
}


@keras.saving.register_keras_serializable(package="tf_transformer")
class Transformer(SequenceModel):
    """The encoder-decoder Transformer (Vaswani et al. 2017).

    `model.quantize("int8")` quantizes all projections and the embeddings; an output projection
    with weights of its own (neither `tie_embeddings` nor `tie_output`) stays as it is.

    Args: as in `SequenceModel`, with a `TransformerConfig`.

    Call arguments:
        inputs: dict of `source_ids` int `(B, S)` and `target_ids` int `(B, T)`, or a tuple or list
            of both; the target starts with the begin id, and both are padded with
            `config.pad_id`. A dict may have `labels` int `(B, T)` too: the call then returns their
            statistics instead of logits, of which only 16 MiB are in memory at a time.
        training: whether dropout is applied.
        return_attention_scores: whether to return the attention weights too.

    Returns:
        logits float32 `(B, T, V)`: those at `t` predict the token after `target_ids[:, t]`; or,
        with `labels`, their statistics float32 `(B, T, 3)`, see `layers.token_statistics`. With
        `return_attention_scores` also a dict with a list of each layer's weights: `encoder`
        `(B, H, S, S)`, `decoder` `(B, H, T, T)` and `cross` `(B, H, T, S)`.

    Raises:
        ValueError: `inputs` is no such dict, tuple or list.
    """

    config_class = TransformerConfig

    def _create_layers(self) -> None:
        config, policy = self.config, self.dtype_policy
        tied = None
        if config.tie_embeddings or config.tie_output:
            tied = token_embedding(config.target_vocab_size, config.d_model, dtype=policy)

        def embedding(
            side: str, vocab_size: int, tokens: keras.layers.Embedding | None
        ) -> PositionalEmbedding:
            limit, positions = config.position_limit, None
            if limit is not None:
                positions = position_embedding(limit, config.d_model, dtype=policy)
            return PositionalEmbedding(
                vocab_size,
                config.d_model,
                config.dropout_rate,
                tokens,
                position_embedding=positions,
                dtype=policy,
                name=f"{side}_embedding",
            )

        def layers(kind: type) -> list:
            return [
                kind(
                    config.d_model,
                    config.num_heads,
                    config.d_ff,
                    config.dropout_rate,
                    config.attention_dropout_rate,
                    config.norm_first,
                    ACTIVATIONS[config.activation],
                    config.attention_radius,
                    dtype=policy,
                    name=f"layer_{index}",
                )
                for index in range(config.num_layers)
            ]

        shared = tied if config.tie_embeddings else None
        self.source_embedding = embedding("source", config.source_vocab_size, shared)
        self.target_embedding = embedding("target", config.target_vocab_size, tied)
        self.encoder = Encoder(layers(EncoderLayer), dtype=policy, name="encoder")
        self.decoder = Decoder(layers(DecoderLayer), dtype=policy, name="decoder")
        self.output_projection = self._output_projection(tied)

    def _build_layers(self) -> None:
        hidden_shape = (None, None, self.config.d_model)
        self.source_embedding.build((None, None))
        self.target_embedding.build((None, None))
        self.encoder.build(hidden_shape)
        self.decoder.build(hidden_shape, hidden_shape)
        self.output_projection.build(hidden_shape)

    def call(
        self,
        inputs: Mapping[str, Tensor] | tuple[Tensor, Tensor] | list[Tensor],
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, dict[str, list[Tensor]]]:
        source_ids, target_ids, labels = split_inputs("Transformer", inputs)
        context_mask = padding_mask(source_ids, self.config.pad_id)
        context = self.encoder(
            self.source_embedding(source_ids, training=training),
            attention_mask=context_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        if return_attention_scores:
            context, encoder_weights = context
        # Real target tokens come first, so the causal mask hides the padding from all of them.
        hidden = self.decoder(
            self.target_embedding(target_ids, training=training),
            context,
            cross_attention_mask=context_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        if not return_attention_scores:
            return self._output(hidden, labels)
        hidden, decoder_weights, cross_weights = hidden
        return self._output(hidden, labels), {
            "encoder": encoder_weights,
            "decoder": decoder_weights,
            "cross": cross_weights,
        }

    def start_decoding(
        self,
        source_ids: Tensor,
        num_steps: int | Tensor | None = None,
        beam_size: int | Tensor | None = None,
    ) -> Cache:
        """Encodes the source and returns the cache for the first step.

        Args:
            source_ids: int tensor `(B, S)`.
            num_steps: int or int scalar tensor, the maximum number of steps, for a KV cache of
                fixed size, which XLA needs; None for one that grows by a position each step.
            beam_size: int or int scalar tensor, K hypotheses for each sentence, in consecutive
                rows (N = B * K); None for one row for each sentence (N = B).

        Returns:
            dict of flat dicts of tensors: `"constants"` and `"source"` `(B, …)`, which never
            change; `"history"` `(B, …)`, which each step extends and which is never re-ordered;
            `"target"` `(N, …)`, which is re-ordered with the hypotheses.
        """
        context_mask = padding_mask(source_ids, self.config.pad_id)
        context = self.encoder(
            self.source_embedding(source_ids, training=False),
            attention_mask=context_mask,
            training=False,
        )
        cache = self.decoder.start_decoding(context, context_mask, num_steps, beam_size)
        if num_steps is None:  # XLA transposes it once by itself
            cache["constants"].update(self._output_kernel())
        return cache

    def decode_step(
        self, token_ids: Tensor, index: int | Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Predicts the token after `token_ids`.

        Args:
            token_ids: int tensor `(N,)`, the token at position `index` of each row.
            index: int or int scalar tensor, counted from 0 (the begin token).
            cache: as returned by `start_decoding` or the previous step.

        Returns:
            logits float32 `(N, V)`, and the cache for the next step.
        """
        x = self.target_embedding.decode_step(token_ids, index)
        hidden, cache = self.decoder.decode_step(x, index, cache)
        return self._step_logits(hidden, cache["constants"]), cache
