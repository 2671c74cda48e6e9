"""Label-smoothed cross-entropy over real tokens."""

from typing import Any

import keras
from keras import ops

from tf_transformer.training.token_statistics import token_statistics


@keras.saving.register_keras_serializable(package="tf_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """The mean of `smoothed_cross_entropy` over the real tokens of the global batch.

    The right token has the probability `1 - label_smoothing`, and all others but padding share the
    rest equally. (Szegedy et al. 2016, Keras and PyTorch give the right token a share of it, too.)

    Each replica of a `tf.distribute` strategy returns its share: the sum over its own tokens,
    divided by the number of tokens on all replicas. Keras adds up the gradients of the replicas, so
    every token has the same weight in the update, even if some replicas have more tokens. For this
    reason there is no argument `reduction`. The loss is always float32.

    Args:
        label_smoothing: In [0, 1); 0 is plain cross-entropy.
        pad_id: The id of padding. Labels with this id are ignored.
        name: Name of the loss.

    Call arguments:
        y_true: int tensor `(B, T)`, the labels. Any other label than padding that is no id,
            such as -100, gives NaN or an error.
        y_pred: float tensor `(B, T, V)`, the logits, all finite: -1e9, not minus infinity.
        sample_weight: float tensor, a weight for each sentence `(B,)` or `(B, 1)`, or for each
            token `(B, T)`. It multiplies the losses; the divisor stays the number of real tokens,
            as Keras' own losses divide by the number of samples.

    Returns:
        float32 scalar; 0 if all labels are padding.

    Raises:
        ValueError: `label_smoothing` is not in [0, 1), `pad_id` is no id of the logits, or the
            shapes do not match.

    Example:
        >>> loss = tt.SmoothedCrossEntropy(label_smoothing=0.0)
        >>> labels, logits = np.array([[5, 6, 0]]), np.zeros((1, 3, 100), "float32")
        >>> round(float(loss(labels, logits)), 3)  # the logarithm of 100
        4.605
    """

    def __init__(
        self, label_smoothing: float = 0.1, pad_id: int = 0, *, name: str = "loss"
    ) -> None:
        super().__init__(name=name, reduction=None, dtype="float32")
        require_smoothing(label_smoothing)
        self.label_smoothing, self.pad_id = label_smoothing, pad_id

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Compute the loss; Keras' own reductions count padding and average over replicas."""
        is_token = ops.not_equal(ops.cast(y_true, "int32"), self.pad_id)
        num_tokens = ops.sum(ops.cast(is_token, "float32"))
        if keras.backend.backend() == "tensorflow":  # other backends see the global batch
            from tf_transformer.training.distribution import sum_over_replicas

            num_tokens = sum_over_replicas(num_tokens)
        return self.total(y_true, y_pred, sample_weight) / ops.maximum(num_tokens, 1.0)

    def total(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Compute the sum of the losses of all tokens here, float32 scalar; as in a call."""
        losses = self.call(y_true, y_pred)
        if sample_weight is not None:
            losses = losses * token_weights(sample_weight, losses)
        return ops.sum(losses)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Compute the loss of each token, float32 `(B, T)`, 0 at padding."""
        labels = ops.cast(y_true, "int32")
        statistics = token_statistics(labels, y_pred, self.pad_id)
        return smoothed_cross_entropy(statistics, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in ("name", "label_smoothing", "pad_id")}


def token_weights(sample_weight: Any, labels: Any) -> Any:
    """Return weights `(B,)`, `(B, 1)` or `(B, T)` in the shape of labels `(B, T)`, float32.

    Raises:
        ValueError: The weights have another shape, if it is known.
    """
    weights = ops.cast(sample_weight, "float32")
    if getattr(weights.shape, "rank", 0) is None:  # in TensorFlow, after weights of another rank
        weights = ops.reshape(weights, (ops.shape(labels)[0], -1))
    sizes = zip(weights.shape, labels.shape, strict=False)
    if len(weights.shape) > 2 or any(n not in (1, m, None) and m is not None for n, m in sizes):
        expected = f"(B,), (B, 1) or (B, T) of labels of shape {tuple(labels.shape)}"
        raise ValueError(f"sample_weight must be {expected}; received {tuple(weights.shape)}.")
    if len(weights.shape) == 1:
        weights = weights[:, None]
    # Unlike a product, this never broadcasts the labels as well.
    return ops.broadcast_to(weights, ops.shape(labels))


def require_smoothing(label_smoothing: float) -> None:
    """Raise a `ValueError` unless `label_smoothing` is in [0, 1)."""
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1); received {label_smoothing}.")


def smoothed_cross_entropy(statistics: Any, label_smoothing: float) -> Any:
    """Compute the cross-entropy of each token against the smoothed target.

    The true token has probability `1 - label_smoothing`, padding has 0, and every other token has
    an equal share of the rest (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).

    Args:
        statistics: float32 tensor `(B, T, 3)`, see `training/token_statistics.py`.
        label_smoothing: In [0, 1); 0 is sparse cross-entropy.

    Returns:
        float32 tensor `(B, T)`, 0 at padding.
    """
    if not label_smoothing:
        return -statistics[..., 0]  # 0 times the other tokens' mean is NaN if that is infinite
    return (label_smoothing - 1.0) * statistics[..., 0] - label_smoothing * statistics[..., 1]
