"""The permutation language model: XLNet's two streams on one stack."""

from collections.abc import Mapping

import keras
from keras import ops

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.masks import permutation_mask
from tf_transformer.layers.positions import PositionalEmbedding
from tf_transformer.models.base import split_inputs
from tf_transformer.models.language_model import TARGET, LanguageModel
from tf_transformer.models.language_model_configs import PermutationLanguageModelConfig


@keras.saving.register_keras_serializable(package="tf_transformer")
class PermutationLanguageModel(LanguageModel):
    """A language model that learns every order of the target (XLNet, Yang et al. 2019, 2.2, 2.3).

    In training each target is predicted in an order drawn anew, its end last; the source is a
    prefix that all tokens see. The content stream knows token and position and sees what is
    generated up to itself. The query stream knows the position that it predicts, begins with one
    learned vector, and sees the content of what is generated before. Both are rows of one sequence
    under one mask, in which nothing sees a query. Without training the order is the natural one,
    so that the logits are those of a causal model.

    It scores; it has no decoding step. Other than XLNet it predicts all tokens of an order, has
    absolute positions, and no segment recurrence.

    Args: as in `SequenceModel`, with a `PermutationLanguageModelConfig`.

    Call arguments:
        inputs: as of `Transformer`; a dict may have `ranks` int `(B, T + 1)` or `(1, T + 1)` too,
            when each token of the target is generated, the begin token (0) and the end included.
        training: whether dropout is applied and an order drawn.

    Returns:
        logits float32 `(B, T, V)`, or with `labels` their statistics, as of `Transformer`.

    Raises:
        ValueError: `inputs` is no such dict, tuple or list.
    """

    config_class = PermutationLanguageModelConfig

    def _create_layers(self) -> None:
        super()._create_layers()
        # One token: the vector that queries begin with, at the position that they predict.
        self.query_embedding = PositionalEmbedding(
            1, self.config.d_model, 0.0, dtype=self.dtype_policy, name="query_embedding"
        )
        self.seed_generator = keras.random.SeedGenerator()

    def _build_layers(self) -> None:
        super()._build_layers()
        self.query_embedding.build((None, None))

    def call(
        self,
        inputs: Mapping[str, Tensor] | tuple[Tensor, Tensor] | list[Tensor],
        training: bool | None = None,
    ) -> Tensor:
        ranks = None
        if isinstance(inputs, Mapping) and "ranks" in inputs:
            ranks = inputs["ranks"]
            inputs = {name: value for name, value in inputs.items() if name != "ranks"}
        source_ids, target_ids, labels = split_inputs("PermutationLanguageModel", inputs)
        if ranks is None:
            ranks = self._drawn_ranks(target_ids) if training else _ranks_in_order(target_ids)
        queries = ops.zeros_like(target_ids)
        positions = ops.arange(ops.shape(target_ids)[1], dtype="int32") + 1
        lengths = self._lengths(source_ids)
        positions = lengths[:, None] + positions
        x = [
            self._embed_source(source_ids),
            self._embed_target(target_ids, lengths),
            self._in_segment(TARGET, self.query_embedding(queries, positions=positions)),
        ]
        hidden = self.stack(
            self.dropout(ops.concatenate(x, axis=1), training=training),
            attention_mask=two_stream_mask(self._is_real(source_ids), ranks),
            training=training,
        )
        first = ops.shape(source_ids)[1] + ops.shape(target_ids)[1]
        return self._output(hidden[:, first:], labels)

    def _drawn_ranks(self, target_ids: Tensor) -> Tensor:
        """A random order of each row's tokens, the begin first, end and padding last."""
        tokens = ops.arange(ops.shape(target_ids)[1], dtype="int32") + 1
        is_token = tokens <= self._lengths(target_ids[:, 1:])[:, None]
        noise = keras.random.uniform(ops.shape(target_ids), seed=self.seed_generator)
        keys = ops.where(is_token, noise, ops.cast(tokens, noise.dtype))  # the noise is below 1
        ranks = ops.cast(ops.argsort(ops.argsort(keys, axis=1), axis=1), "int32") + 1
        return ops.pad(ranks, [[0, 0], [1, 0]])


def _ranks_in_order(target_ids: Tensor) -> Tensor:
    return ops.arange(ops.shape(target_ids)[1] + 1, dtype="int32")[None]


def two_stream_mask(is_source: Tensor, ranks: Tensor) -> Tensor:
    """The mask of a sequence of source, content and queries.

    Args:
        is_source: bool tensor `(B, S)`, the real tokens of the source.
        ranks: int tensor `(B, T + 1)` or `(1, T + 1)`, see `permutation_mask`.

    Returns:
        bool tensor `(B, S + 2 T, S + 2 T)`.
    """
    size, length = ops.shape(is_source)[1], ops.shape(ranks)[1] - 1
    content = ranks[:, None, :-1] <= ranks[:, :-1, None]
    targets = ops.concatenate([content, permutation_mask(ranks)], axis=1)
    targets = ops.pad(targets, [[0, 0], [size, 0], [size, length]])
    return ops.logical_or(targets, ops.pad(is_source, [[0, 0], [0, 2 * length]])[:, None])
