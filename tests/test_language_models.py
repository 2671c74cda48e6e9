"""Tests of the language models: one stack of self-attention, whose mask is its task."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import SOURCE, TARGET, batch, small_config, small_model

import tf_transformer as tt
from tf_transformer.layers.masks import causal_mask
from tf_transformer.models.architectures import build_model

pytestmark = pytest.mark.slow

PAD, BOS, EOS, MASK = 0, 2, 3, 1


@pytest.fixture(scope="module")
def model_of(randomise):
    return functools.cache(lambda name: randomise(small_model(name)))


def labels_of(target_ids):
    """The tokens after `target_ids` `(B, T)`, then the end."""
    labels = np.pad(target_ids[:, 1:], [(0, 0), (0, 1)])
    labels[np.arange(len(labels)), (target_ids[:, 1:] != PAD).sum(axis=1)] = EOS
    return labels


def test_a_prefix_model_begins_with_the_stack_of_a_masked_one(model_of):
    masked = model_of("masked_lm")
    model = small_model("prefix_lm")
    model.set_weights(masked.get_weights())
    x = np.random.default_rng(0).normal(size=(2, 4, 12)).astype("float32")
    np.testing.assert_array_equal(model.stack(x), masked.stack(x))
    assert [w.path.split("/", 1)[1] for w in model.weights] == [
        w.path.split("/", 1)[1] for w in masked.weights
    ]


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_prompt_is_continued_as_a_target_is(cut, model_of):
    # The begin of a text may be given as a prompt or as a target: the logits after it are the same.
    model, text = model_of("causal_lm"), TARGET[:1]
    whole = model((np.full((1, 1), EOS), text))
    prompt = np.append(text[:, 1 : cut + 1], [[EOS]], axis=1)
    rest = np.append(text[:, :1], text[:, cut + 1 :], axis=1)
    np.testing.assert_allclose(model((prompt, rest)), whole[:, cut:], atol=1e-5)


ORDERS = {
    "in order": [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]],
    "drawn": [[5, 2, 4, 1, 3, 6], [2, 1, 3, 4, 5, 6]],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_shuffled_tokens_under_the_triangle_have_the_loss_of_their_order(order, randomise):
    # The cheap equivalent of an order: put tokens and their positions in it, and read from left to
    # right. Here each token is predicted from the ones before, by one plain stack.
    model = randomise(build_model(small_config("permutation_lm", dropout_rate=0.0)))
    ranks = np.pad(order, [(0, 0), (1, 0)]).astype("int32")
    model._draw_ranks = lambda target_ids: ranks
    labels = labels_of(TARGET)
    inputs = {"source_ids": SOURCE, "target_ids": TARGET}
    found = tt.SmoothedCrossEntropy(0.0)(labels, model(inputs, training=True))

    rows = np.arange(2)[:, None]
    generated = np.argsort(ranks, axis=1)  # the tokens' places in the sentence
    lengths = (SOURCE != PAD).sum(axis=1)[:, None]
    whole = np.append(TARGET, np.full((2, 1), EOS), axis=1)[rows, generated]
    own, other = model.segment_embedding(np.array([0, 1]))
    source = model.source_embedding(SOURCE)
    content = model.target_embedding(whole[:, :-1], positions=lengths + generated[:, :-1])
    queries = model.query_embedding(np.zeros((2, 6)), positions=lengths + generated[:, 1:])
    x = tf.concat([source + own, content + other, queries + other], axis=1)
    triangle = np.broadcast_to(causal_mask(6)[0], (2, 6, 6))
    mask = np.zeros((2, 17, 17), bool)
    mask[:, :, :5] = (SOURCE != PAD)[:, None]
    mask[:, 5:11, 5:11] = mask[:, 11:, 5:11] = triangle
    logits = model.output_projection(model.stack(x, attention_mask=mask)[:, 11:])
    shuffled = labels[rows, generated[:, 1:] - 1]
    expected = tt.SmoothedCrossEntropy(0.0)(shuffled, logits)
    assert float(found) == pytest.approx(float(expected), abs=1e-5)
    if order is ORDERS["in order"]:
        np.testing.assert_allclose(model(inputs), logits, atol=1e-5)


def test_drawn_orders_end_with_the_end():
    model = small_model("permutation_lm")
    target_ids = np.array([[BOS, *range(4, 12)], [BOS, 5, 6, 7, 0, 0, 0, 0, 0], [BOS] + 8 * [0]])
    drawn = np.stack([model._draw_ranks(target_ids) for _ in range(200)])
    assert (np.sort(drawn, axis=2) == np.arange(10)).all()
    assert (drawn[:, :, 0] == 0).all() and (drawn[:, 0, 9] == 9).all()
    assert (drawn[:, 1, 4:] == np.arange(4, 10)).all() and (drawn[:, 2] == np.arange(10)).all()
    # Every token has every rank about as often: 25 of 200 each, 66.7 of the shorter.
    counts = (drawn[:, 0, 1:9, None] == np.arange(1, 9)).sum(axis=0)
    assert counts.min() > 8 and counts.max() < 50
    assert len({tuple(order) for order in drawn[:, 1, 1:4]}) == 6


def test_what_is_drawn_and_shown():
    keras.utils.set_random_seed(0)
    model = build_model(small_config("masked_lm", target_vocab_size=50, tie_embeddings=False))
    rng = np.random.default_rng(0)
    token_ids = rng.integers(4, 50, (2000, 20))
    lengths = rng.choice([1, 2, 10, 20], (2000, 1))
    drawn, shown = model._draw(token_ids, np.arange(20) < lengths)
    drawn, shown = np.asarray(drawn), np.asarray(shown)
    np.testing.assert_array_equal(shown[~drawn], token_ids[~drawn])
    # As BERT's code: 15 %, rounded, and at least one.
    wanted = {1: 1, 2: 1, 10: 2, 20: 3}
    assert drawn.sum(axis=1).tolist() == [wanted[length] for length in lengths[:, 0].tolist()]
    long = drawn[lengths[:, 0] == 20]
    assert long.sum() == 0.15 * long.size
    np.testing.assert_allclose(long.mean(axis=0), 0.15, atol=0.06)  # deviation 0.016
    new, old = shown[drawn], token_ids[drawn]
    assert len(new) > 3000  # deviations of at most 0.008
    assert (new == MASK).mean() == pytest.approx(0.8, abs=0.04)
    assert (new == old).mean() == pytest.approx(0.1 + 0.1 / 50, abs=0.03)
    others = new[(new != MASK) & (new != old)]
    assert len(others) / len(new) == pytest.approx(0.1, abs=0.03)
    assert len(np.unique(others)) > 40 and others.max() < 50 and others.min() >= 0


def test_in_training_the_output_is_0_but_at_drawn_tokens(model_of):
    model, inputs = model_of("masked_lm"), batch(small_config("masked_lm"))
    labels = labels_of(TARGET)
    counts = np.zeros(labels.shape, int)
    for _ in range(20):
        logits = np.asarray(model(inputs, training=True))
        counts += logits.any(axis=-1)
    assert counts.sum() == 20 * 2 and (counts[labels == PAD] == 0).all()
    assert counts[labels == EOS].all(), "the end is a token"


def test_loss_and_metrics_are_those_of_the_drawn_tokens():
    def measures():
        return tt.SmoothedCrossEntropy(), tt.Perplexity(), tt.TokenAccuracy()

    model = build_model(small_config("masked_lm"))
    loss, *metrics = measures()
    model.compile(loss=loss, metrics=metrics)
    labels, drawn = labels_of(TARGET), ([0, 1], [2, 1])
    logits = np.random.default_rng(0).normal(size=(2, 6, 13)).astype("float32")
    output = np.zeros_like(logits)
    output[drawn] = logits[drawn]
    found = model.compute_metrics(None, labels, output)
    found = [model.compute_loss(y=labels, y_pred=output), found["perplexity"], found["accuracy"]]
    expected = [measure(labels[drawn][None], logits[drawn][None]) for measure in measures()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_pseudo_log_likelihood_masks_one_token_at_a_time(in_graph, model_of):
    model, inputs = model_of("masked_lm"), batch(small_config("masked_lm"))
    logits = np.asarray((tf.function(model) if in_graph else model)(inputs))
    for row, t in [(0, 0), (0, 2), (0, 5), (1, 0), (1, 1), (1, 2)]:
        source = SOURCE[row][SOURCE[row] != PAD]
        target = np.append(TARGET[row][TARGET[row] != PAD], EOS)
        target[t + 1] = MASK
        positions = len(source) + np.arange(len(target))
        own, other = model.segment_embedding(np.array([0, 1]))
        embedded = model.target_embedding(target[None], positions=positions[None])
        x = tf.concat([model.source_embedding(source[None]) + own, embedded + other], axis=1)
        hidden = model.stack(x)[0, len(source) + t + 1]
        expected = model.output_projection(hidden[None])[0]
        np.testing.assert_allclose(logits[row, t], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["permutation_lm", "masked_lm"])  # others: test_learning.py
def test_it_learns(name):
    # Source and target are the same three of eight letters.
    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_ff": 64, "dropout_rate": 0.0}
    model = build_model(small_config(name, **sizes))
    model.compile(keras.optimizers.Adam(5e-3), loss=tt.SmoothedCrossEntropy(0.0))
    letters = np.random.default_rng(0).integers(4, 12, (6432, 3)).astype("int32")
    begin, end = np.full((6432, 1), BOS, "int32"), np.full((6432, 1), EOS, "int32")
    x = {
        "source_ids": np.concatenate([letters, end], axis=1),
        "target_ids": np.concatenate([begin, letters], axis=1),
    }
    part = tf.data.Dataset.from_tensor_slices((x, x["source_ids"])).batch(64)
    model.fit(part.take(100), epochs=3, shuffle=False, verbose=0)
    assert model.evaluate(part.skip(100), verbose=0) < 0.2  # ln 8 * 3 / 4 = 1.56 without the source
