"""The masked language model: BERT's objective on the target, given the source."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from tf_transformer.layers.base import Tensor
from tf_transformer.models.base import split_inputs
from tf_transformer.models.language_model import LanguageModel
from tf_transformer.models.language_model_configs import MaskedLanguageModelConfig

# Devlin et al. 2019, section 3.1.
DRAWN = 0.15
MASKED, RANDOM = 0.8, 0.1


@keras.saving.register_keras_serializable(package="tf_transformer")
class MaskedLanguageModel(LanguageModel):
    """A model of target tokens given the source and all other target tokens.

    BERT's objective (Devlin et al. 2019, section 3.1) on the target beside its source, as in
    translation language modelling (Lample & Conneau 2019, section 3.4), which masks both and
    begins the target's positions anew. Source and target, its begin and end included, see each
    other in both directions.

    In training 15 % of each target's tokens are drawn, the end among them, at least one, as BERT's
    code does. Of these 80 % are shown as `config.mask_id`, 10 % as a random token and 10 % as they
    are. The output at all other tokens is 0, by which `compute_loss` and `compute_metrics` know
    that these do not count: the output alone says it, and nothing is kept between the calls.

    Without training the logits are those of pseudo-log-likelihood (Salazar et al. 2020, section
    2.1): each token of the target is predicted with it alone masked. That takes T times as long.
    The end, with all before it seen, is all but certain: it adds next to nothing to the sum.

    It scores; it has no decoding step.

    Args: as in `SequenceModel`, with a `MaskedLanguageModelConfig`.

    Call arguments:
        inputs: as of `Transformer`.
        training: whether dropout is applied and tokens are drawn.

    Returns:
        logits float32 `(B, T, V)`, or with `labels` their statistics, as of `Transformer`.

    Raises:
        ValueError: `inputs` is no such dict, tuple or list.
    """

    config_class = MaskedLanguageModelConfig

    def _create_layers(self) -> None:
        super()._create_layers()
        self.seed_generator = keras.random.SeedGenerator()

    def call(
        self,
        inputs: Mapping[str, Tensor] | tuple[Tensor, Tensor] | list[Tensor],
        training: bool | None = None,
    ) -> Tensor:
        source_ids, target_ids, labels = split_inputs("MaskedLanguageModel", inputs)
        # With its end: columns 1 to T are what the logits predict.
        lengths = self._lengths(target_ids[:, 1:]) + 1
        columns = ops.arange(ops.shape(target_ids)[1] + 1, dtype="int32")
        whole = ops.pad(target_ids, [[0, 0], [0, 1]])
        whole = ops.where(columns == lengths[:, None], self.config.eos_id, whole)
        is_target = columns <= lengths[:, None]
        if not training:
            return self._output(self._one_by_one(source_ids, whole, is_target), labels)
        drawn, shown = self._draw(whole[:, 1:], is_target[:, 1:])
        shown = ops.concatenate([whole[:, :1], shown], axis=1)
        x = self._embed(source_ids, shown)
        hidden = self._hidden(source_ids, x, is_target, training)
        hidden = hidden[:, ops.shape(source_ids)[1] + 1 :]
        if labels is not None:
            return self._output(hidden, ops.where(drawn, labels, self.config.pad_id))
        return ops.where(drawn[..., None], self._output(hidden, None), 0.0)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """As `keras.Model.compute_loss`, of the tokens that were drawn."""
        y = self._counted(y, y_pred)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """As `keras.Model.compute_metrics`, of the tokens that were drawn."""
        return super().compute_metrics(x, self._counted(y, y_pred), y_pred, sample_weight)

    def _counted(self, labels: Any, output: Any) -> Any:
        """The labels, those of tokens that do not count made padding."""
        if labels is None:
            return None
        return ops.where(ops.any(ops.not_equal(output, 0), axis=-1), labels, self.config.pad_id)

    def _draw(self, token_ids: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor]:
        """Draws tokens.

        Args:
            token_ids: int tensor `(B, T)`.
            is_token: bool tensor `(B, T)`, those to draw from.

        Returns:
            the drawn tokens, bool `(B, T)`, and what is shown of all, int `(B, T)`.
        """

        def noise() -> Tensor:
            return keras.random.uniform(ops.shape(token_ids), seed=self.seed_generator)

        totals = ops.sum(ops.cast(is_token, "float32"), axis=1, keepdims=True)
        ranks = ops.argsort(ops.argsort(ops.where(is_token, noise(), 2.0), axis=1), axis=1)
        drawn = ops.cast(ranks, "float32") < ops.maximum(ops.floor(DRAWN * totals + 0.5), 1.0)
        drawn = ops.logical_and(drawn, is_token)
        kind, vocab_size = noise(), self.config.target_vocab_size
        random_ids = ops.cast(noise() * vocab_size, token_ids.dtype)
        random_ids = ops.minimum(random_ids, vocab_size - 1)  # a product may be rounded up
        shown = ops.where(kind < MASKED + RANDOM, random_ids, token_ids)
        shown = ops.where(kind < MASKED, self.config.mask_id, shown)
        return drawn, ops.where(drawn, shown, token_ids)

    def _one_by_one(self, source_ids: Tensor, whole: Tensor, is_target: Tensor) -> Tensor:
        """Hidden states `(B, T, D)` of tokens 1 to T, in each of which that token alone is masked.

        B rows at a time go through the stack, T times.
        """
        size, length = ops.shape(source_ids)[1], ops.shape(whole)[1] - 1
        columns = ops.arange(length + 1, dtype="int32")

        def predict(index: Tensor, found: Tensor) -> Tensor:
            shown = ops.where(columns == index + 1, self.config.mask_id, whole)
            x = self._embed(source_ids, shown)
            hidden = self._hidden(source_ids, x, is_target, training=False)
            of_token = ops.take(hidden, size + 1 + index, axis=1)[:, None]
            return ops.where((columns[:-1] == index)[:, None], of_token, found)

        shape = (ops.shape(source_ids)[0], length, self.config.d_model)
        return ops.fori_loop(0, length, predict, ops.zeros(shape, self.compute_dtype))

    def _embed(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        target = self._embed_target(target_ids, self._lengths(source_ids))
        return ops.concatenate([self._embed_source(source_ids), target], axis=1)

    def _hidden(
        self, source_ids: Tensor, x: Tensor, is_target: Tensor, training: bool | None
    ) -> Tensor:
        """The hidden states `(B, S + T + 1, D)`, all of which see all real tokens."""
        visible = ops.concatenate([self._is_real(source_ids), is_target], axis=1)
        return self.stack(
            self.dropout(x, training=training), attention_mask=visible[:, None], training=training
        )
