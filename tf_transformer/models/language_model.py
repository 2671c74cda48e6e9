"""The base class of the language models: one stack of self-attention over source and target."""

from typing import ClassVar

import keras
from keras import ops

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.positions import PositionalEmbedding, token_embedding
from tf_transformer.layers.prefix_stack import PrefixLayer, PrefixStack
from tf_transformer.models.base import Cache, SequenceModel
from tf_transformer.models.language_model_configs import LanguageModelConfig

SOURCE, TARGET = 0, 1


class LanguageModel(SequenceModel):
    """A stack of self-attention over source and target, whose mask is its task.

    Positions run on from the source to the target, row by row: padding between them is masked and
    not counted. Where there are segments, each side has a learned vector that is added to its
    tokens (Devlin et al. 2019, section 3).

    Args: as in `SequenceModel`.
    """

    config: LanguageModelConfig
    has_segments: ClassVar[bool] = True

    def _create_layers(self) -> None:
        config, policy = self.config, self.dtype_policy
        shared = None
        if config.tie_embeddings:
            shared = token_embedding(config.target_vocab_size, config.d_model, dtype=policy)
        self.source_embedding = PositionalEmbedding(
            config.source_vocab_size, config.d_model, 0.0, shared,
            dtype=policy, name="source_embedding",
        )  # fmt: skip
        self.target_embedding = PositionalEmbedding(
            config.target_vocab_size, config.d_model, 0.0, shared,
            dtype=policy, name="target_embedding",
        )  # fmt: skip
        if self.has_segments:
            self.segment_embedding = keras.layers.Embedding(
                2,
                config.d_model,
                embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0),  # as tokens'
                dtype=policy,
                name="segment_embedding",
            )
        self.dropout = keras.layers.Dropout(config.dropout_rate, dtype=policy)
        self.stack = PrefixStack(
            [
                PrefixLayer(
                    config.d_model,
                    config.num_heads,
                    config.d_ff,
                    config.dropout_rate,
                    config.attention_dropout_rate,
                    config.norm_first,
                    dtype=policy,
                    name=f"layer_{index}",
                )
                for index in range(config.num_layers)
            ],
            dtype=policy,
            name="stack",
        )
        self.output_projection = self._output_projection(shared)

    def _build_layers(self) -> None:
        hidden_shape = (None, None, self.config.d_model)
        self.source_embedding.build((None, None))
        self.target_embedding.build((None, None))
        if self.has_segments:
            self.segment_embedding.build((None,))
        self.stack.build(hidden_shape)
        self.output_projection.build(hidden_shape)

    def _is_real(self, token_ids: Tensor) -> Tensor:
        """Where tokens are no padding, bool `(B, T)`."""
        return ops.not_equal(token_ids, self.config.pad_id)

    def _lengths(self, token_ids: Tensor) -> Tensor:
        """The number of real tokens in each row, int32 `(B,)`."""
        return ops.sum(ops.cast(self._is_real(token_ids), "int32"), axis=1)

    def _embed_source(self, source_ids: Tensor) -> Tensor:
        return self._in_segment(SOURCE, self.source_embedding(source_ids))

    def _embed_target(self, target_ids: Tensor, first: Tensor) -> Tensor:
        """Embeds target tokens `(B, T)`, the first at the positions `first` `(B,)`."""
        positions = first[:, None] + ops.arange(ops.shape(target_ids)[1], dtype="int32")
        return self._in_segment(TARGET, self.target_embedding(target_ids, positions=positions))

    def _embed_step(self, token_ids: Tensor, index: int | Tensor, cache: Cache) -> Tensor:
        """Embeds the newest tokens `(N,)` of all hypotheses as `(B, K, D)`.

        `cache["source"]["lengths"]` `(B,)` are the positions at index 0.
        """
        beams = cache["constants"].get("beams")
        of_sentences = ops.reshape(token_ids, (-1, 1 if beams is None else ops.shape(beams)[0]))
        positions = cache["source"]["lengths"][:, None] + index
        x = self.target_embedding.decode_step(of_sentences, positions)
        return self._in_segment(TARGET, x)

    def _in_segment(self, segment: int, x: Tensor) -> Tensor:
        if not self.has_segments:
            return x
        vector = self.segment_embedding(ops.full((1,), segment, "int32"))
        return x + ops.cast(vector, self.compute_dtype)

    def _decode_embedded(
        self, x: Tensor, index: int | Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """The logits `(N, V)` after embedded tokens `(B, K, D)`, and the next step's cache."""
        rows = ops.reshape(x, (-1, self.config.d_model))
        hidden, cache = self.stack.decode_step(rows, index, cache)
        return self._step_logits(hidden, cache["constants"]), cache
