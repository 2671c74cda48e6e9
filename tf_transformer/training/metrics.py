"""Metrics over real tokens: sums with weights, so that batches and replicas add up."""

import keras
from keras import ops

from tf_transformer.training.losses import smoothed_cross_entropy, token_weights


class _TokenMean(keras.metrics.Metric):
    """The mean over all real tokens seen since the last reset.

    Subclasses say in `token_values(labels, logits)` what is averaged, a tensor `(B, T)`. As one of
    `weighted_metrics` it is weighted by `sample_weight`, `(B,)` or `(B, T)`.
    """

    def __init__(self, pad_id=0, *, name=None):
        super().__init__(name=name, dtype="float32")
        self.pad_id = pad_id
        self.total = self.add_weight(name="total", shape=(), initializer="zeros")
        self.count = self.add_weight(name="count", shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = ops.cast(y_true, "int32")
        weights = ops.cast(ops.not_equal(labels, self.pad_id), "float32")
        if sample_weight is not None:
            weights = weights * token_weights(sample_weight)
        values = ops.cast(self.token_values(labels, y_pred), "float32")
        self.total.assign_add(ops.sum(values * weights))
        self.count.assign_add(ops.sum(weights))

    def result(self):
        return self.total / ops.maximum(self.count, 1.0)

    def get_config(self):
        return {"name": self.name, "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenLoss(_TokenMean):
    """The loss as it should be reported: the mean of `SmoothedCrossEntropy` over all tokens.

    Keras reports the mean of the batches' losses, weighted by their numbers of sentences. A metric
    in `compile` that is called `loss` takes the place of that figure.

    Args:
        label_smoothing: float in [0, 1), as the loss has it.
        pad_id: int; a position with this label counts nothing.
    """

    def __init__(self, label_smoothing=0.1, pad_id=0, *, name="loss"):
        super().__init__(pad_id, name=name)
        self.label_smoothing = label_smoothing

    def token_values(self, labels, logits):
        return smoothed_cross_entropy(labels, logits, self.label_smoothing, self.pad_id)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenAccuracy(_TokenMean):
    """The share of real tokens that have the highest logit, a tie counted as right.

    Args:
        pad_id: int; a position with this label counts nothing.

    Call arguments (`update_state`): labels `(B, T)`, logits `(B, T, V)`. Returns: float32 scalar.
    """

    def __init__(self, pad_id=0, *, name="accuracy"):
        super().__init__(pad_id, name=name)

    def token_values(self, labels, logits):
        # Comparing with the maximum is several times cheaper than an argmax over a vocabulary.
        true_logits = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return true_logits >= ops.max(logits, axis=-1)


@keras.saving.register_keras_serializable(package="tf_transformer")
class Perplexity(_TokenMean):
    """`exp` of the mean negative log-probability of real tokens, without label smoothing.

    Args:
        pad_id: int; a position with this label counts nothing.
    """

    def __init__(self, pad_id=0, *, name="perplexity"):
        super().__init__(pad_id, name=name)

    def token_values(self, labels, logits):
        return smoothed_cross_entropy(labels, logits, label_smoothing=0.0, pad_id=self.pad_id)

    def result(self):
        return ops.exp(super().result())
