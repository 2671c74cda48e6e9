"""Metrics over real tokens: weighted means, whose sums add up over batches and replicas."""

from typing import Any, ClassVar

import keras
from keras import ops

from tf_transformer.training.losses import require_smoothing, smoothed_cross_entropy, token_weights
from tf_transformer.training.token_statistics import token_statistics


class _TokenMean(keras.metrics.Mean):
    """The mean over all real tokens seen since the last reset.

    Subclasses compute the tensor `(B, T)` to average in `token_values(statistics)`, from token
    statistics `(B, T, 3)`. As one of the `weighted_metrics`, the mean is weighted by
    `sample_weight`, `(B,)` or `(B, T)`.

    Args:
        pad_id: The id of padding. Labels with this id are ignored.
        name: Name of the metric; None for the `default_name` of its class.

    Call arguments (`update_state`): labels `(B, T)`, logits `(B, T, V)`. Returns: float64 scalar,
    float32 on JAX and PyTorch.
    """

    default_name: ClassVar[str]
    _direction: ClassVar[str] = "down"  # which Keras' callbacks with `mode="auto"` read

    def __init__(self, pad_id: int = 0, *, name: str | None = None) -> None:
        # Beyond about 16 million, float32 is too coarse for sums over tokens. Other backends may
        # have no float64.
        dtype = "float64" if keras.backend.backend() == "tensorflow" else "float32"
        super().__init__(name=name or self.default_name, dtype=dtype)
        self.pad_id = pad_id

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels = ops.cast(y_true, "int32")
        weights = ops.cast(ops.not_equal(labels, self.pad_id), "float32")
        if sample_weight is not None:
            weights = weights * token_weights(sample_weight, labels)
        values = self.token_values(token_statistics(labels, y_pred, self.pad_id))
        # Flat, because Keras would average each row first, and count rows of all lengths alike.
        super().update_state(ops.reshape(values, (-1,)), ops.reshape(weights, (-1,)))

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenLoss(_TokenMean):
    """The mean of `SmoothedCrossEntropy` over all tokens since the last reset.

    Keras itself reports the mean of the batches' losses, weighted by their numbers of sentences. A
    metric with the name `loss` in `compile` replaces that mean.

    The arguments are those of `SmoothedCrossEntropy`.

    Example:
        >>> metric = tt.TokenLoss(label_smoothing=0.1)
        >>> metric.update_state(np.array([[5, 6, 0]]), np.zeros((1, 3, 100), "float32"))
        >>> round(float(metric.result()), 3)
        4.605
    """

    default_name = "loss"

    def __init__(
        self, label_smoothing: float = 0.1, pad_id: int = 0, *, name: str | None = None
    ) -> None:
        super().__init__(pad_id, name=name)
        require_smoothing(label_smoothing)
        self.label_smoothing = label_smoothing

    def token_values(self, statistics: Any) -> Any:
        return smoothed_cross_entropy(statistics, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenAccuracy(_TokenMean):
    """The fraction of real tokens whose label has the highest logit; a tie counts as correct.

    Example:
        >>> metric = tt.TokenAccuracy()
        >>> logits = np.eye(100, dtype="float32")[np.array([[5, 9, 0]])]
        >>> metric.update_state(np.array([[5, 6, 0]]), logits)
        >>> float(metric.result())
        0.5
    """

    default_name = "accuracy"
    _direction = "up"

    def token_values(self, statistics: Any) -> Any:
        """Return 1 where no logit is higher than that of the label, else 0."""
        return statistics[..., 2]


@keras.saving.register_keras_serializable(package="tf_transformer")
class Perplexity(_TokenMean):
    """`exp` of the mean negative log-probability of real tokens, without label smoothing.

    Example:
        >>> metric = tt.Perplexity()
        >>> metric.update_state(np.array([[5, 6, 0]]), np.zeros((1, 3, 100), "float32"))
        >>> round(float(metric.result()))
        100
    """

    default_name = "perplexity"

    def token_values(self, statistics: Any) -> Any:
        return -statistics[..., 0]

    def result(self) -> Any:
        return ops.exp(super().result())
