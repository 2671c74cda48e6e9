"""The Transformer: a sequence-to-sequence model based on attention alone."""

from tf_transformer.layers.base import Int, Tensor, built
from tf_transformer.layers.decoder import Decoder, DecoderLayer
from tf_transformer.layers.encoder import Encoder, EncoderLayer
from tf_transformer.layers.kv_cache import Cache
from tf_transformer.layers.masks import padding_mask, segment_mask
from tf_transformer.layers.positions import token_embedding
from tf_transformer.models.base import Inputs, SequenceModel, packed_sides, split_inputs
from tf_transformer.models.model_configs import TransformerConfig


class Transformer(SequenceModel):
    """The encoder-decoder Transformer (Vaswani et al. 2017).

    `model.quantize("int8")` quantizes all projections and the embeddings; an output projection
    with weights of its own (neither `tie_embeddings` nor `tie_output`) stays as it is.

    Args, call arguments and returns: as in `SequenceModel`, with a `TransformerConfig`. The inputs
        may be packed: several pairs in a row, as `TokenBatches` makes them with `row_length`. With
        `return_attention_scores` a call also returns a dict of lists of the layers' weights:
        `encoder` `(B, H, S, S)`, `decoder` `(B, H, T, T)` and `cross` `(B, H, T, S)`.

    Example:
        >>> config = tt.TransformerConfig(100, 100, num_layers=1, d_model=8, num_heads=2, d_ff=16)
        >>> model = tt.Transformer(config)
        >>> model({"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}).shape
        TensorShape([1, 2, 100])
    """

    config_class = TransformerConfig

    def _create_layers(self) -> None:
        config, policy, tied = self.config, self.dtype_policy, None
        hidden, rate = (None, None, config.d_model), config.dropout_rate
        if config.tie_embeddings or config.tie_output:
            tied = token_embedding(config.target_vocab_size, config.d_model, dtype=policy)
        shared, embedding = tied if config.tie_embeddings else None, self._positional_embedding
        sizes, table = (config.source_vocab_size, config.target_vocab_size), self._position_table
        self.source_embedding = embedding("source", sizes[0], shared, table(), rate)
        self.target_embedding = embedding("target", sizes[1], tied, table(), rate)
        layers = self._transformer_layers(EncoderLayer, config.num_layers)
        self.encoder = built(Encoder(layers, dtype=policy, name="encoder"), hidden)
        number = config.decoder_layers or config.num_layers
        layers = self._transformer_layers(DecoderLayer, number)
        self.decoder = built(Decoder(layers, dtype=policy, name="decoder"), hidden, hidden)
        self.output_projection = self._output_projection(tied)

    def call(
        self, inputs: Inputs, training: bool | None = None, return_attention_scores: bool = False
    ) -> Tensor | tuple[Tensor, dict[str, list[Tensor]]]:
        if sides := packed_sides(inputs):
            (source_ids, source, source_positions), (target_ids, target, target_positions) = sides
            mask, own, across = (
                segment_mask(queries, keys)
                for queries, keys in ((source, source), (target, target), (target, source))
            )
        else:
            source_ids, target_ids = split_inputs(inputs)
            mask = across = padding_mask(source_ids, self.config.pad_id)
            # Real target tokens come first, so the causal mask hides the padding from all of them.
            own = source_positions = target_positions = None
        options = {"training": training, "return_attention_scores": True}
        x = self.source_embedding(source_ids, source_positions, training=training)
        context, encoder = self.encoder(x, attention_mask=mask, **options)
        x = self.target_embedding(target_ids, target_positions, training=training)
        hidden, decoder, cross = self.decoder(x, context, own, across, **options)
        output = self.output_projection(hidden)
        weights = {"encoder": encoder, "decoder": decoder, "cross": cross}
        return (output, weights) if return_attention_scores else output

    def start_decoding(self, source_ids: Tensor) -> Cache:
        """Encode the source and return the cache for the first step.

        Args:
            source_ids: int tensor `(B, S)`.

        Returns:
            dict of flat dicts of tensors: `"constants"`; `"source"` `(B, …)`, which never changes;
            and `"target"` `(B, …)`, the KV cache, which each step extends.
        """
        mask = padding_mask(source_ids, self.config.pad_id)
        x = self.source_embedding(source_ids, training=False)
        context = self.encoder(x, attention_mask=mask, training=False)
        cache = self.decoder.start_decoding(context, mask)
        cache["constants"].update(self.output_projection.start_decoding())
        return cache

    def decode_step(self, token_ids: Tensor, index: Int, cache: Cache) -> tuple[Tensor, Cache]:
        """Return logits float32 `(N, V)` of the token after `token_ids`, and the next step's cache.

        Args:
            token_ids: int tensor `(N,)`, the token at position `index` of each row.
            index: int or int scalar tensor, the position, counted from 0 (the begin token).
            cache: as returned by `start_decoding` or the previous step.
        """
        x = self.target_embedding.decode_step(token_ids, index)
        hidden, cache = self.decoder.decode_step(x, cache)
        return self.output_projection.decode_step(hidden, cache["constants"]), cache
