"""Metrics over real tokens: weighted means, so that batches and replicas add up."""

from typing import Any, ClassVar

import keras
from keras import ops

from tf_transformer.training.losses import smoothed_cross_entropy, statistics_of, token_weights


class _TokenMean(keras.metrics.Mean):
    """The mean over all real tokens seen since the last reset.

    Subclasses say in `token_values(statistics)` what is averaged, a tensor `(B, T)`. In
    `weighted_metrics` the mean is weighted by `sample_weight`, `(B,)` or `(B, T)`.

    Args:
        pad_id: The id of padding; labels that are padding are ignored.
        from_statistics: Whether the model returns token statistics of the labels (see
            `Transformer`) instead of logits.
        name: Name of the metric; None for that of its class.

    Call arguments (`update_state`): labels `(B, T)`, logits `(B, T, V)` or token statistics
    `(B, T, 3)`. Returns: float64 scalar, float32 on JAX and PyTorch.
    """

    default_name: ClassVar[str]
    direction: ClassVar[str] = "down"  # for callbacks with `mode="auto"`

    def __init__(
        self, pad_id: int = 0, from_statistics: bool = False, *, name: str | None = None
    ) -> None:
        # Sums of 16 million tokens leave no digits of float32 for those of a batch. Other backends
        # may have no float64.
        dtype = "float64" if keras.backend.backend() == "tensorflow" else "float32"
        super().__init__(name=name or self.default_name, dtype=dtype)
        self._direction = self.direction
        self.pad_id, self.from_statistics = pad_id, from_statistics

    def token_values(self, statistics: Any) -> Any:
        """Compute what is averaged, `(B, T)`, from token statistics `(B, T, 3)`."""
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels = ops.cast(y_true, "int32")
        weights = ops.cast(ops.not_equal(labels, self.pad_id), "float32")
        if sample_weight is not None:
            weights = weights * token_weights(sample_weight, labels)
        values = self.token_values(statistics_of(labels, y_pred, self.pad_id, self.from_statistics))
        # Flat, because Keras averages over all axes but the first, whatever their sizes.
        super().update_state(ops.reshape(values, (-1,)), ops.reshape(weights, (-1,)))

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "pad_id": self.pad_id, "from_statistics": self.from_statistics}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenLoss(_TokenMean):
    """The mean of `SmoothedCrossEntropy` over all tokens, as a loss should be reported.

    Keras reports the mean of the batches' losses, weighted by their numbers of sentences. A metric
    of the name `loss` in `compile` takes its place.

    Its arguments are those of the loss.
    """

    default_name = "loss"

    def __init__(
        self,
        label_smoothing: float = 0.1,
        pad_id: int = 0,
        from_statistics: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(pad_id, from_statistics, name=name)
        self.label_smoothing = label_smoothing

    def token_values(self, statistics: Any) -> Any:
        return smoothed_cross_entropy(statistics, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenAccuracy(_TokenMean):
    """The fraction of real tokens that have the highest logit; a tie counts as right."""

    default_name = "accuracy"
    direction = "up"

    def token_values(self, statistics: Any) -> Any:
        """Return 1 where no logit is higher than that of the label, else 0."""
        return statistics[..., 2]


@keras.saving.register_keras_serializable(package="tf_transformer")
class Perplexity(_TokenMean):
    """`exp` of the mean negative log-probability of real tokens, without label smoothing."""

    default_name = "perplexity"

    def token_values(self, statistics: Any) -> Any:
        return -statistics[..., 0]

    def result(self) -> Any:
        return ops.exp(super().result())
