"""Label-smoothed cross-entropy over real tokens."""

import keras
from keras import ops

from tf_transformer.layers.token_scores import token_scores


@keras.saving.register_keras_serializable(package="tf_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """The mean of `smoothed_cross_entropy` over the real tokens of the global batch.

    On several replicas of a `tf.distribute` strategy each returns its share: the sum over its own
    tokens, divided by the tokens of all replicas. Keras adds up the replicas' gradients, so that
    they are those of the one mean over all tokens, however uneven the replicas are, and a replica
    without a sentence adds nothing.

    Args:
        label_smoothing: float in [0, 1); 0 is plain cross-entropy.
        pad_id: int; a position with this label counts nothing.
        from_scores: bool, whether the model gives the scores of the labels (see
            `Transformer`) instead of logits.

    Call arguments:
        y_true: int tensor `(B, T)`, the labels.
        y_pred: float tensor `(B, T, V)`, the logits; `(B, T, 3)` with `from_scores`.
        sample_weight: float tensor, a weight for each sentence `(B,)` or each token `(B, T)`. It
            multiplies the losses; the divisor stays the number of real tokens, as Keras' own
            losses divide by the number of samples.

    Returns:
        float32 scalar; 0 for a batch of padding alone.

    Raises:
        ValueError: `label_smoothing` is not in [0, 1).
    """

    def __init__(self, label_smoothing=0.1, pad_id=0, from_scores=False, *, name="loss"):
        super().__init__(name=name, reduction=None, dtype="float32")
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be at least 0 and less than 1; "
                f"received label_smoothing={label_smoothing}."
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id
        self.from_scores = from_scores

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Keras' own reduction would count padding, and average the replicas' means.
        losses = self.call(y_true, y_pred)
        if sample_weight is not None:
            losses = losses * token_weights(sample_weight)
        tokens = real_tokens(ops.cast(y_true, "int32"), self.pad_id)
        return ops.sum(losses) / ops.maximum(_of_all_replicas(tokens), 1.0)

    def call(self, y_true, y_pred):
        """The loss of each token, float32 `(B, T)`, 0 at padding."""
        labels = ops.cast(y_true, "int32")
        scores = scores_of(labels, y_pred, self.pad_id, self.from_scores)
        return smoothed_cross_entropy(scores, self.label_smoothing)

    def get_config(self):
        return {
            "name": self.name,
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "from_scores": self.from_scores,
        }


def _of_all_replicas(count):
    if keras.backend.backend() != "tensorflow":
        return count  # other backends see the global batch
    from tf_transformer.training.distribution import sum_over_replicas

    return sum_over_replicas(count)


def real_tokens(labels, pad_id):
    """The number of labels that are not padding, as a float32 scalar."""
    return ops.sum(ops.cast(ops.not_equal(labels, pad_id), "float32"))


def token_weights(sample_weight):
    """Weights of sentences `(B,)` as `(B, 1)`, which goes with tokens; others as they are."""
    weights = ops.cast(sample_weight, "float32")
    return weights[:, None] if len(weights.shape) == 1 else weights


def scores_of(labels, y_pred, pad_id, from_scores):
    """What a model returned as scores `(B, T, 3)`.

    Raises:
        ValueError: it returned logits with `from_scores`, or scores without.
    """
    # A vocabulary has more than three tokens: padding, begin, end and what is said.
    if (y_pred.shape[-1] == 3) != from_scores:
        raise ValueError(
            f"from_scores={from_scores}, but the model returned a tensor of shape {y_pred.shape}. "
            f"It returns scores (B, T, 3) where its inputs hold the labels: use from_scores=True "
            f"together with dataset(labels_as_input=True), for validation too, or neither."
        )
    return y_pred if from_scores else token_scores(labels, y_pred, pad_id)


def smoothed_cross_entropy(scores, label_smoothing):
    """Cross-entropy of each token against the smoothed target.

    The true token has probability `1 - label_smoothing`, every other token but padding an equal
    share of the rest, padding 0 (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).

    Args:
        scores: float32 tensor `(B, T, 3)`, see `layers.token_scores`.
        label_smoothing: float in [0, 1); with 0 this is sparse cross-entropy.

    Returns:
        float32 tensor `(B, T)`, 0 at padding.
    """
    if not label_smoothing:
        return -scores[..., 0]  # the others may have probability 0, and an infinite logarithm
    return (label_smoothing - 1.0) * scores[..., 0] - label_smoothing * scores[..., 1]
