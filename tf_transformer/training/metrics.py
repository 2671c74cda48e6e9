"""Metrics over real tokens: weighted means, so that batches and replicas add up."""

from typing import Any

import keras
from keras import ops

from tf_transformer.training.losses import (
    checked_pad_id,
    scores_of,
    smoothed_cross_entropy,
    token_weights,
)


class _TokenMean(keras.metrics.Mean):
    """The mean over all real tokens seen since the last reset.

    Subclasses say in `token_values(scores)` what is averaged, a tensor `(B, T)`. As one of
    `weighted_metrics` it is weighted by `sample_weight`, `(B,)` or `(B, T)`.

    Args:
        pad_id: The id of padding; a label that is padding counts nothing.
        from_scores: Whether the model returns the token scores of the labels (see `Transformer`)
            instead of logits.
        name: Name of the metric.

    Call arguments (`update_state`): labels `(B, T)`, logits `(B, T, V)` or token scores
    `(B, T, 3)`. Returns: float32 scalar.
    """

    def __init__(self, pad_id: int = 0, from_scores: bool = False, *, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        self._direction = "down"  # for callbacks with `mode="auto"`
        self.pad_id = checked_pad_id(pad_id)
        self.from_scores = from_scores

    def token_values(self, scores: Any) -> Any:
        """What is averaged, `(B, T)`, given token scores `(B, T, 3)`."""
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch."""
        labels = ops.cast(y_true, "int32")
        weights = ops.cast(ops.not_equal(labels, self.pad_id), "float32")
        if sample_weight is not None:
            weights = weights * token_weights(sample_weight, labels)
        values = self.token_values(scores_of(labels, y_pred, self.pad_id, self.from_scores))
        # Flat, since Keras averages over all axes but the first, whatever their sizes.
        super().update_state(ops.reshape(values, (-1,)), ops.reshape(weights, (-1,)))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"name": self.name, "pad_id": self.pad_id, "from_scores": self.from_scores}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenLoss(_TokenMean):
    """The mean of `SmoothedCrossEntropy` over all tokens, as a loss should be reported.

    Keras reports the mean of the batches' losses, weighted by their numbers of sentences. A metric
    in `compile` that is called `loss` takes its place.

    Args:
        label_smoothing: As the loss has it.
        pad_id: As the loss has it.
        from_scores: As the loss has it.
        name: Name of the metric.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        pad_id: int = 0,
        from_scores: bool = False,
        *,
        name: str = "loss",
    ) -> None:
        super().__init__(pad_id, from_scores, name=name)
        self.label_smoothing = label_smoothing

    def token_values(self, scores: Any) -> Any:
        """The smoothed cross-entropy."""
        return smoothed_cross_entropy(scores, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenAccuracy(_TokenMean):
    """The fraction of real tokens that have the highest logit, a tie counted as right."""

    def __init__(
        self, pad_id: int = 0, from_scores: bool = False, *, name: str = "accuracy"
    ) -> None:
        super().__init__(pad_id, from_scores, name=name)
        self._direction = "up"

    def token_values(self, scores: Any) -> Any:
        """1 where no logit is higher than that of the label, else 0."""
        return scores[..., 2]


@keras.saving.register_keras_serializable(package="tf_transformer")
class Perplexity(_TokenMean):
    """`exp` of the mean negative log-probability of real tokens, without label smoothing."""

    def __init__(
        self, pad_id: int = 0, from_scores: bool = False, *, name: str = "perplexity"
    ) -> None:
        super().__init__(pad_id, from_scores, name=name)

    def token_values(self, scores: Any) -> Any:
        """The negative log-probability."""
        return -scores[..., 0]

    def result(self) -> Any:
        """The perplexity."""
        return ops.exp(super().result())
