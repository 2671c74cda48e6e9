"""Metrics over real tokens: weighted means, so that batches and replicas add up."""

from typing import Any

import keras
from keras import ops

from tf_transformer.training.losses import (
    checked_pad_id,
    smoothed_cross_entropy,
    statistics_of,
    token_weights,
)


class _TokenMean(keras.metrics.Mean):
    """The mean over all real tokens seen since the last reset.

    Subclasses say in `token_values(statistics)` what is averaged, a tensor `(B, T)`. As one of
    `weighted_metrics` it is weighted by `sample_weight`, `(B,)` or `(B, T)`.

    Args:
        pad_id: The id of padding; a label that is padding counts nothing.
        from_statistics: Whether the model returns token statistics of the labels, see
            `Transformer`, instead of logits.
        name: Name of the metric.

    Call arguments (`update_state`): labels `(B, T)`, logits `(B, T, V)` or token statistics
    `(B, T, 3)`. Returns: float64 scalar, float32 on JAX and PyTorch.
    """

    def __init__(self, pad_id: int = 0, from_statistics: bool = False, *, name: str) -> None:
        # Sums of 16 million tokens leave no digits of float32 for those of a batch. Other backends
        # may have no float64.
        on_tensorflow = keras.backend.backend() == "tensorflow"
        super().__init__(name=name, dtype="float64" if on_tensorflow else "float32")
        self._direction = "down"  # for callbacks with `mode="auto"`
        self.pad_id = checked_pad_id(pad_id)
        self.from_statistics = from_statistics

    def token_values(self, statistics: Any) -> Any:
        """What is averaged, `(B, T)`, given token statistics `(B, T, 3)`."""
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch."""
        labels = ops.cast(y_true, "int32")
        weights = ops.cast(ops.not_equal(labels, self.pad_id), "float32")
        if sample_weight is not None:
            weights = weights * token_weights(sample_weight, labels)
        values = self.token_values(statistics_of(labels, y_pred, self.pad_id, self.from_statistics))
        # Flat, since Keras averages over all axes but the first, whatever their sizes.
        super().update_state(ops.reshape(values, (-1,)), ops.reshape(weights, (-1,)))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"name": self.name, "pad_id": self.pad_id, "from_statistics": self.from_statistics}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenLoss(_TokenMean):
    """The mean of `SmoothedCrossEntropy` over all tokens, as a loss should be reported.

    Keras reports the mean of the batches' losses, weighted by their numbers of sentences. A metric
    in `compile` that is called `loss` takes its place.

    Args:
        label_smoothing: As the loss has it.
        pad_id: As the loss has it.
        from_statistics: As the loss has it.
        name: Name of the metric.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        pad_id: int = 0,
        from_statistics: bool = False,
        *,
        name: str = "loss",
    ) -> None:
        super().__init__(pad_id, from_statistics, name=name)
        self.label_smoothing = label_smoothing

    def token_values(self, statistics: Any) -> Any:
        """The smoothed cross-entropy."""
        return smoothed_cross_entropy(statistics, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenAccuracy(_TokenMean):
    """The fraction of real tokens that have the highest logit, a tie counted as right."""

    def __init__(
        self, pad_id: int = 0, from_statistics: bool = False, *, name: str = "accuracy"
    ) -> None:
        super().__init__(pad_id, from_statistics, name=name)
        self._direction = "up"

    def token_values(self, statistics: Any) -> Any:
        """1 where no logit is higher than that of the label, else 0."""
        return statistics[..., 2]


@keras.saving.register_keras_serializable(package="tf_transformer")
class Perplexity(_TokenMean):
    """`exp` of the mean negative log-probability of real tokens, without label smoothing."""

    def __init__(
        self, pad_id: int = 0, from_statistics: bool = False, *, name: str = "perplexity"
    ) -> None:
        super().__init__(pad_id, from_statistics, name=name)

    def token_values(self, statistics: Any) -> Any:
        """The negative log-probability."""
        return -statistics[..., 0]

    def result(self) -> Any:
        """The perplexity."""
        return ops.exp(super().result())
