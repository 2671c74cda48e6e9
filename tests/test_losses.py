"""Tests of the smoothed loss, and the metrics over real tokens."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_transformer.training.losses import SmoothedCrossEntropy
from tf_transformer.training.metrics import Perplexity, TokenAccuracy, TokenLoss
from tf_transformer.training.optimizers import Adam
from tf_transformer.training.schedules import NoamSchedule, TrapezoidSchedule

RNG = np.random.default_rng(11)
LOGITS = RNG.normal(scale=2.0, size=(3, 4, 6)).astype("float32")
LABELS = np.array([[1, 5, 2, 0], [4, 0, 0, 0], [3, 3, 1, 2]])


def smoothed_target(labels, size, smoothing, pad_id):
    """The target as the Annotated Transformer builds it; zeros at padding."""
    target = np.zeros((*labels.shape, size))
    for index in np.ndindex(labels.shape):
        if labels[index] != pad_id:
            target[index] = smoothing / (size - 2)
            target[index][labels[index]] = 1 - smoothing
            target[index][pad_id] = 0
    return target


def log_softmax(logits):
    logits = logits.astype("float64")
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def value_and_gradient(loss, labels, logits):
    logits = tf.Variable(logits)
    with tf.GradientTape() as tape:
        value = loss(labels, logits)
    return np.asarray(value), np.asarray(tape.gradient(value, logits))


@pytest.mark.parametrize(("smoothing", "pad_id"), [(0.0, 0), (0.4, 0), (0.1, 3)])
def test_loss_is_the_mean_over_real_tokens(smoothing, pad_id):
    target = smoothed_target(LABELS, 6, smoothing, pad_id)
    real = LABELS != pad_id
    tokens = -(target * log_softmax(LOGITS)).sum(axis=-1)
    losses = np.asarray(SmoothedCrossEntropy(smoothing, pad_id).call(LABELS, LOGITS))
    np.testing.assert_allclose(losses, tokens, rtol=1e-5, atol=1e-6)
    assert (losses[~real] == 0).all()
    loss = SmoothedCrossEntropy(smoothing, pad_id)(LABELS, LOGITS)
    assert loss.dtype == "float32" and loss.shape == ()
    np.testing.assert_allclose(loss, tokens.sum() / real.sum(), rtol=1e-5)


def test_a_batch_of_padding_alone_has_no_loss():
    value, gradient = value_and_gradient(SmoothedCrossEntropy(0.1), np.zeros_like(LABELS), LOGITS)
    assert value == 0 and (gradient == 0).all()


@pytest.mark.parametrize(
    ("smoothing", "dtype"), [(0.0, "float32"), (0.1, "bfloat16"), (0.1, "float16")]
)
def test_huge_logits_are_exact(smoothing, dtype):
    # Token 2 has logit 10^4, the others -10^4: lse is 10^4, so a token's loss is its target's
    # probability off token 2, times 2 * 10^4. The softmax is 1 at token 2.
    logits = np.full((1, 3, 6), -1e4)
    logits[..., 2] = 1e4
    share = smoothing / 4
    labels = np.array([[1, 2, 0]])
    loss, gradient = value_and_gradient(
        SmoothedCrossEntropy(smoothing), labels, tf.cast(logits, dtype)
    )
    off = (1 - share) + smoothing
    assert loss.dtype == "float32"
    np.testing.assert_allclose(loss, 2e4 * off / 2, rtol=1e-2 if dtype == "bfloat16" else 1e-5)
    softmax = np.array([0, 0, 1, 0, 0, 0]) * (labels != 0)[..., None]
    expected = (softmax - smoothed_target(labels, 6, smoothing, 0)) / 2
    np.testing.assert_allclose(gradient.astype("float64"), expected, atol=2e-3)


def test_shapes_that_would_broadcast_are_refused():
    loss = SmoothedCrossEntropy()
    weighted = loss(LABELS, LOGITS, [1.0, 0.5, 2.0])
    by_token = np.broadcast_to([[1.0], [0.5], [2.0]], LABELS.shape)
    np.testing.assert_allclose(loss(LABELS, LOGITS, by_token), weighted)
    for measure in (loss, TokenAccuracy(), TokenLoss()):
        for shape in ((3, 4, 1), (4,), (1, 4, 1), (3, 2), (2, 1), (3, 1, 1)):
            with pytest.raises(ValueError, match=rf"received \({shape[0]},"):
                measure(LABELS, LOGITS, np.ones(shape))
        with pytest.raises(ValueError, match=r"labels of shape \(1, 4\); received \(4,\)"):
            measure(LABELS[:1], LOGITS[:1], np.ones(4))  # each token of one sentence
    with pytest.raises(ValueError, match="do not fit"):
        loss(LABELS, LOGITS.swapaxes(0, 1))


@pytest.mark.parametrize("pad_id", [-1, 6])
def test_padding_that_is_no_token_is_refused(pad_id):
    for measure in (SmoothedCrossEntropy(pad_id=pad_id), TokenAccuracy(pad_id)):
        with pytest.raises(ValueError, match=f"pad_id must be from 0 to 5; received {pad_id}"):
            measure(LABELS, LOGITS)


def test_a_label_below_0_is_no_token_and_without_smoothing_infinite_padding_does_not_count():
    labels, logits = np.array([[2, 0]]), np.zeros((1, 2, 6), "float32")
    logits[..., 0] = -np.inf
    value, gradient = value_and_gradient(SmoothedCrossEntropy(0.0), labels, logits)
    assert value == pytest.approx(np.log(5)) and np.isfinite(gradient).all()
    assert np.isnan(SmoothedCrossEntropy()(np.array([[2, -1]]), np.zeros((1, 2, 6), "float32")))


@pytest.mark.parametrize(
    "shapes", [((3,), (3, 4)), ((3, 4), (3, 1)), ((3, 1), (3,))], ids=lambda s: f"{s}"
)
def test_weights_of_another_rank_may_follow(shapes):
    """TensorFlow then traces `fit` again, with weights of an unknown rank."""
    model = keras.Sequential([keras.Input([None]), keras.layers.Embedding(6, 6)])
    model.compile("sgd", SmoothedCrossEntropy(), weighted_metrics=[TokenLoss()], jit_compile=False)
    for shape in shapes:
        weights = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
        model.fit(LABELS, LABELS, sample_weight=weights, verbose=0)
        _, found = model.evaluate(LABELS, LABELS, sample_weight=weights, verbose=0)
        assert found == pytest.approx(float(TokenLoss()(LABELS, model(LABELS), weights)), rel=1e-5)


@pytest.mark.parametrize(
    ("thing", "module"),
    [
        (SmoothedCrossEntropy(0.3, pad_id=2, name="mine"), keras.losses),
        (TokenAccuracy(pad_id=2, name="mine"), keras.metrics),
        (Perplexity(pad_id=2, name="mine"), keras.metrics),
        (NoamSchedule(64, 100, 0.5), keras.optimizers.schedules),
        (TrapezoidSchedule(2.0, 10, 3, 0.25), keras.optimizers.schedules),
        (Adam(NoamSchedule(16), weight_decay=0.25, global_clipnorm=2.0), keras.optimizers),
    ],
    ids=lambda value: type(value).__name__,
)
def test_config_round_trip(thing, module):
    twin = module.deserialize(module.serialize(thing))
    assert type(twin) is type(thing)
    assert twin.get_config() == thing.get_config()
    if module in (keras.losses, keras.metrics):
        assert twin.name == "mine"
        assert float(twin(LABELS, LOGITS)) == float(thing(LABELS, LOGITS)) > 0


def test_metrics_of_60_million_tokens_do_not_drift():
    metric = TokenLoss(0.0)
    # Each batch has one token, whose weight is that of a batch of 5,003.
    logits = tf.zeros((1, 1, 79))

    @tf.function
    def see(batches):
        for _ in tf.range(batches):
            metric.update_state([[7]], logits, [5003.0])

    see(12_000)
    assert float(metric.result()) == pytest.approx(np.log(79), rel=1e-6)


@pytest.mark.parametrize("pad_id", [0, 3])
def test_metrics_are_means_over_all_tokens_of_uneven_batches(pad_id):
    # Batches of 3, 1 and 4 real tokens if padding is 0: a mean of the batches' means is wrong.
    real = LABELS != pad_id
    log_probabilities = log_softmax(LOGITS)
    right = [LOGITS[i].argmax() == LABELS[i] for i in zip(*np.nonzero(real), strict=True)]
    nll = [-log_probabilities[i][LABELS[i]] for i in zip(*np.nonzero(real), strict=True)]
    accuracy, perplexity = TokenAccuracy(pad_id), Perplexity(pad_id)
    for labels, logits in zip(LABELS, LOGITS, strict=True):
        accuracy.update_state(labels[None], logits[None])
        perplexity.update_state(labels[None], logits[None])
    assert 0 < np.mean(right) < 1
    np.testing.assert_allclose(accuracy.result(), np.mean(right), rtol=1e-6)
    np.testing.assert_allclose(perplexity.result(), np.exp(np.mean(nll)), rtol=1e-5)
