"""Metrics over real tokens: sums with weights, so that batches and replicas add up."""

import keras
from keras import ops

from tf_transformer.training.losses import scores_of, smoothed_cross_entropy, token_weights


class _TokenMean(keras.metrics.Metric):
    """The mean over all real tokens seen since the last reset.

    Subclasses say in `token_values(scores)` what is averaged, a tensor `(B, T)`. As one of
    `weighted_metrics` it is weighted by `sample_weight`, `(B,)` or `(B, T)`.

    Args:
        pad_id: int; a position with this label counts nothing.
        from_scores: bool, whether the model gives the scores of the labels (see
            `Transformer`) instead of logits.

    Call arguments (`update_state`): labels `(B, T)`, logits `(B, T, V)` or scores `(B, T, 3)`.
    Returns: float32 scalar.
    """

    def __init__(self, pad_id=0, from_scores=False, *, name=None):
        super().__init__(name=name, dtype="float32")
        self.pad_id = pad_id
        self.from_scores = from_scores
        self.total = self.add_weight(name="total", shape=(), initializer="zeros")
        self.count = self.add_weight(name="count", shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = ops.cast(y_true, "int32")
        weights = ops.cast(ops.not_equal(labels, self.pad_id), "float32")
        if sample_weight is not None:
            weights = weights * token_weights(sample_weight)
        scores = scores_of(labels, y_pred, self.pad_id, self.from_scores)
        self.total.assign_add(ops.sum(self.token_values(scores) * weights))
        self.count.assign_add(ops.sum(weights))

    def result(self):
        return self.total / ops.maximum(self.count, 1.0)

    def get_config(self):
        return {"name": self.name, "pad_id": self.pad_id, "from_scores": self.from_scores}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenLoss(_TokenMean):
    """The loss as it should be reported: the mean of `SmoothedCrossEntropy` over all tokens.

    Keras reports the mean of the batches' losses, weighted by their numbers of sentences. A metric
    in `compile` that is called `loss` takes the place of that figure.

    Args:
        label_smoothing, pad_id, from_scores: as the loss has them.
    """

    def __init__(self, label_smoothing=0.1, pad_id=0, from_scores=False, *, name="loss"):
        super().__init__(pad_id, from_scores, name=name)
        self.label_smoothing = label_smoothing

    def token_values(self, scores):
        return smoothed_cross_entropy(scores, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="tf_transformer")
class TokenAccuracy(_TokenMean):
    """The share of real tokens that have the highest logit, a tie counted as right."""

    def __init__(self, pad_id=0, from_scores=False, *, name="accuracy"):
        super().__init__(pad_id, from_scores, name=name)

    def token_values(self, scores):
        return scores[..., 2]


@keras.saving.register_keras_serializable(package="tf_transformer")
class Perplexity(_TokenMean):
    """`exp` of the mean negative log-probability of real tokens, without label smoothing."""

    def __init__(self, pad_id=0, from_scores=False, *, name="perplexity"):
        super().__init__(pad_id, from_scores, name=name)

    def token_values(self, scores):
        return -scores[..., 0]

    def result(self):
        return ops.exp(super().result())
