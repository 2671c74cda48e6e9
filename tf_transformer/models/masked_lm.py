"""The masked language model: BERT's objective on the target, given the source."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.base import Tensor
from tf_transformer.models.base import Inputs, split_inputs
from tf_transformer.models.language_model import LanguageModel
from tf_transformer.models.model_configs import MaskedLanguageModelConfig

# Shares of drawn tokens, and of masked and random among these (Devlin et al. 2019, section 3.1).
DRAWN = 0.15
MASKED, RANDOM = 0.8, 0.1


class MaskedLanguageModel(LanguageModel):
    """A model that predicts target tokens from the source and all other target tokens.

    The objective is BERT's (Devlin et al. 2019, section 3.1), on the target beside its source.
    Translation language modelling (Lample & Conneau 2019, section 3.4) is similar, but masks both
    sides and restarts the positions at the target. Source and target, with the target's begin and
    end tokens, see each other in both directions.

    Training draws 15 % of each target's tokens, the end token included, but at least one, as BERT's
    code does. It shows 80 % of these as `config.mask_id`, 10 % as a random token, 10 % unchanged.
    The output at all other tokens is 0, which tells `labels_predicted` to ignore these tokens; the
    model keeps no state between the calls.

    Outside training the logits are those of pseudo-log-likelihood (Salazar et al. 2020, section
    2.1): each target token is predicted while only that token is masked, which takes T times as
    long. The end token is almost certain given the rest, so it barely affects the sum.

    The model only scores text, without a decoding step.

    Args, call arguments and returns: as in `SequenceModel`, with a `MaskedLanguageModelConfig`. In
        training, each call draws the tokens at random.

    Example:
        >>> config = tt.MaskedLanguageModelConfig(100, 100, num_layers=1, d_model=8, num_heads=2)
        >>> model = tt.MaskedLanguageModel(config)
        >>> model({"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}).shape
        TensorShape([1, 2, 100])
    """

    config_class = MaskedLanguageModelConfig

    def _create_layers(self) -> None:
        super()._create_layers()
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, inputs: Inputs, training: bool | None = None) -> Tensor:
        source_ids, target_ids = split_inputs(inputs)
        # The whole target includes its end token; the logits predict columns 1 to T.
        lengths = self._lengths(target_ids[:, 1:]) + 1
        columns = ops.arange(ops.shape(target_ids)[1] + 1, dtype="int32")
        whole = ops.pad(target_ids, [[0, 0], [0, 1]])
        whole = ops.where(columns == lengths[:, None], self.config.eos_id, whole)
        is_target = columns <= lengths[:, None]
        if not training:
            return self.output_projection(self._one_by_one(source_ids, whole, is_target))
        drawn, shown = self._draw(whole[:, 1:], is_target[:, 1:])
        shown = ops.concatenate([whole[:, :1], shown], axis=1)
        hidden = self._hidden(source_ids, shown, is_target, training)[:, 1:]
        return ops.where(drawn[..., None], self.output_projection(hidden), 0.0)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Compute the loss as `keras.Model.compute_loss` does, of the drawn tokens only."""
        labels = None if y is None else self.labels_predicted(y, y_pred)
        return super().compute_loss(x, labels, y_pred, *args, **kwargs)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Compute metrics as `keras.Model.compute_metrics` does, of the drawn tokens only."""
        labels = None if y is None else self.labels_predicted(y, y_pred)
        return super().compute_metrics(x, labels, y_pred, sample_weight)

    def num_predicted(self, labels: Tensor) -> Tensor:
        lengths = self._lengths(labels)
        return ops.sum(ops.minimum(_num_drawn(lengths), ops.cast(lengths, "float32")))

    def labels_predicted(self, labels: Tensor, output: Tensor) -> Tensor:
        """Return the labels, with padding where the output is 0."""
        return ops.where(ops.any(ops.not_equal(output, 0), axis=-1), labels, self.config.pad_id)

    def _draw(self, token_ids: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor]:
        """Draw from tokens `(B, T)`; return which are drawn, bool, and the ids to show, int."""

        def noise() -> Tensor:
            return keras.random.uniform(ops.shape(token_ids), seed=self.seed_generator)

        number = _num_drawn(ops.sum(ops.cast(is_token, "int32"), axis=1))[:, None]
        ranks = ops.argsort(ops.argsort(ops.where(is_token, noise(), 2.0), axis=1), axis=1)
        drawn = ops.logical_and(ops.cast(ranks, "float32") < number, is_token)
        kind, vocab_size = noise(), self.config.target_vocab_size
        random_ids = ops.cast(noise() * vocab_size, token_ids.dtype)
        random_ids = ops.minimum(random_ids, vocab_size - 1)  # the product may have been rounded up
        shown = ops.where(kind < MASKED + RANDOM, random_ids, token_ids)
        shown = ops.where(kind < MASKED, self.config.mask_id, shown)
        return drawn, ops.where(drawn, shown, token_ids)

    def _one_by_one(self, source_ids: Tensor, whole: Tensor, is_target: Tensor) -> Tensor:
        """Return hidden states `(B, T, D)` of tokens 1 to T, each with only that token masked."""
        length = ops.shape(whole)[1] - 1
        columns = ops.arange(length + 1, dtype="int32")

        def predict(index: Tensor, found: Tensor) -> Tensor:
            shown = ops.where(columns == index + 1, self.config.mask_id, whole)
            hidden = self._hidden(source_ids, shown, is_target, training=False)
            of_token = ops.take(hidden, index + 1, axis=1)[:, None]
            return ops.where((columns[:-1] == index)[:, None], of_token, found)

        shape = (ops.shape(source_ids)[0], length, self.config.d_model)
        return ops.fori_loop(0, length, predict, ops.zeros(shape, self.compute_dtype))

    def _hidden(
        self, source_ids: Tensor, shown: Tensor, is_target: Tensor, training: bool | None
    ) -> Tensor:
        """Return the target's hidden states `(B, T + 1, D)`; every token sees all real tokens."""
        visible = ops.concatenate([self._is_real(source_ids), is_target], axis=1)[:, None]
        hidden, _ = self._read(self._embed_sides(source_ids, shown), visible, training)
        return hidden[:, ops.shape(source_ids)[1] :]


def _num_drawn(lengths: Tensor) -> Tensor:
    """Return how many tokens are drawn from rows of int `lengths` `(B,)`, float32 `(B,)`."""
    return ops.maximum(ops.floor(DRAWN * ops.cast(lengths, "float32") + 0.5), 1.0)
