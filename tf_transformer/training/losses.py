"""Label-smoothed cross-entropy over real tokens."""

import keras
from keras import ops


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

    Call arguments:
        y_true: int tensor `(B, T)`, the labels.
        y_pred: float tensor `(B, T, V)`, the logits.
        sample_weight: float tensor, a weight for each sentence `(B,)` or each token `(B, T)`. It
            multiplies the losses; the divisor stays the number of real tokens, as Keras' own
            losses divide by the number of samples.

    Returns:
        float32 scalar; 0 for a batch of padding alone.

    Raises:
        ValueError: `label_smoothing` is not in [0, 1).
    """

    def __init__(self, label_smoothing=0.1, pad_id=0, *, name="loss"):
        super().__init__(name=name, reduction=None, dtype="float32")
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be at least 0 and less than 1; "
                f"received label_smoothing={label_smoothing}."
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

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
        return smoothed_cross_entropy(labels, y_pred, self.label_smoothing, self.pad_id)

    def get_config(self):
        return {"name": self.name, "label_smoothing": self.label_smoothing, "pad_id": self.pad_id}


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


def smoothed_cross_entropy(labels, logits, label_smoothing, pad_id):
    """Cross-entropy of each token against the smoothed target.

    The true token has probability `1 - label_smoothing`, every other token but padding
    `share = label_smoothing / (V - 2)`, padding 0 (Szegedy et al. 2016; Vaswani et al. 2017,
    section 5.4). The target is never built: with `lse` the log-sum-exp of the logits

        loss     = lse - (1 - label_smoothing - share) logit[true] - share sum(logit[not padding])
        gradient = softmax - share, at the true token softmax - (1 - label_smoothing),
                   at padding softmax

    and both come from the one exponential of the forward pass, which keeps the work on the
    largest tensor of the model to a few passes.

    Args:
        labels: int tensor `(B, T)`.
        logits: float tensor `(B, T, V)`.
        label_smoothing: float in [0, 1); with 0 this is sparse cross-entropy.
        pad_id: int; a position with this label counts nothing.

    Returns:
        float32 tensor `(B, T)`, 0 at padding.
    """
    vocab_size = logits.shape[-1]
    share = label_smoothing / max(vocab_size - 2, 1)
    confidence = 1.0 - label_smoothing

    flat_labels = ops.reshape(labels, (-1,))
    weights = ops.cast(ops.not_equal(flat_labels, pad_id), "float32")
    rows = ops.arange(ops.shape(flat_labels)[0])
    places = ops.stack([rows, ops.cast(flat_labels, rows.dtype)], axis=1)
    if label_smoothing:
        pad_places = ops.stack([rows, ops.full_like(rows, pad_id)], axis=1)
        places = ops.concatenate([places, pad_places], axis=0)

    @ops.custom_gradient
    def losses_of(flat_logits):
        largest = ops.max(flat_logits, axis=-1, keepdims=True)
        exponentials = ops.exp(flat_logits - largest)
        total = ops.sum(exponentials, axis=-1, keepdims=True)
        lse = (largest + ops.log(total))[:, 0]
        true_logits = ops.take_along_axis(flat_logits, flat_labels[:, None], axis=1)[:, 0]
        losses = lse - (confidence - share) * true_logits
        if label_smoothing:
            losses = losses - share * (ops.sum(flat_logits, axis=-1) - flat_logits[:, pad_id])

        def gradient(*args, upstream=None):
            upstream = weights * (args[0] if upstream is None else upstream)
            slopes = exponentials * (upstream[:, None] / total) - share * upstream[:, None]
            exceptions = (ops.exp(true_logits - lse) - confidence) * upstream
            if label_smoothing:
                pad_slopes = ops.exp(flat_logits[:, pad_id] - lse) * upstream
                exceptions = ops.concatenate([exceptions, pad_slopes], axis=0)
            # One scatter: each copies the largest tensor there is.
            return ops.scatter_update(slopes, places, exceptions)

        return losses * weights, gradient

    flat_logits = ops.reshape(ops.cast(logits, "float32"), (-1, vocab_size))
    return ops.reshape(losses_of(flat_logits), ops.shape(labels))
