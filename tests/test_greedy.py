"""Tests of greedy search: against a loop in NumPy, and with the Transformer."""

import numpy as np
import pytest
import tensorflow as tf
from step_models import (
    BOS,
    EOS,
    PAD,
    SPECIAL,
    TRANSFORMERS,
    VOCAB_SIZE,
    Bag,
    Markov,
    arrays,
    log_softmax,
    padded_sources,
    random_model,
)

from tf_transformer.decoding import Hypotheses, greedy_search, output_limits
from tf_transformer.models.configs import TransformerConfig
from tf_transformer.models.transformer import Transformer

MODELS = pytest.mark.parametrize("model", [Markov(), Bag()], ids=["markov", "bag"])


def greedy_loop(logits_of, limit, eos_id=EOS):
    """The ids of one sentence, their log-probability, and whether they were truncated."""
    tokens, log_prob = [BOS], 0.0
    while True:
        log_probs = log_softmax(logits_of(tokens))
        best = int(np.argmax(log_probs))
        if best == eos_id:
            return tokens[1:], log_prob + log_probs[eos_id], False
        if len(tokens) - 1 == limit:
            return tokens[1:], log_prob, True
        log_prob += log_probs[best]
        tokens.append(best)


def single(found):
    """The fields of `Hypotheses` with n = 1, without that axis."""
    found = arrays(found)
    assert found.lengths.shape[1] == 1
    return Hypotheses(*(array[:, 0] for array in found))


def check(hypotheses, expected, length_penalty=0.6):
    """Compares hypotheses with rows of `greedy_loop`."""
    ids, lengths, log_probs, scores, truncated = single(hypotheses)
    longest = max((len(row) for row, _, _ in expected), default=0)
    padded = [row + [PAD] * (longest - len(row)) for row, _, _ in expected]
    assert ids.shape == (len(expected), longest)
    assert ids.tolist() == padded
    assert lengths.tolist() == [len(row) for row, _, _ in expected]
    assert truncated.tolist() == [t for _, _, t in expected]
    np.testing.assert_allclose(log_probs, [p for _, p, _ in expected], rtol=1e-5, atol=1e-5)
    expected_scores = [
        p / ((5 + len(row) + (not truncated)) / 6) ** length_penalty
        for row, p, truncated in expected
    ]
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5, atol=1e-5)


def search(model, sources, limits, **kwargs):
    sources, limits = tf.convert_to_tensor(sources), tf.convert_to_tensor(limits)
    cache = model.start_decoding(sources)
    return greedy_search(model.decode_step, cache, limits, **SPECIAL, **kwargs)


def graph_search(model):
    """`search` of a model as a function of sources and limits, in a graph."""
    signature = [
        tf.TensorSpec([None, model.sources(0).shape[1]]),
        tf.TensorSpec([None], tf.int32),
    ]
    return tf.function(
        lambda sources, limits: search(model, sources, limits), input_signature=signature
    )


# Against a loop


@MODELS
def test_greedy_search_is_the_loop_row_by_row(model):
    sources = model.sources(60)

    def loop(source, limit):
        return greedy_loop(lambda tokens: model.logits(source, tokens), limit)

    # Limits of one token less than the sentence would have, as many, one more, and two more.
    natural = [len(loop(source, 15)[0]) for source in sources]
    limits = np.array([max(n + row % 4 - 1, 0) for row, n in enumerate(natural)], np.int32)
    hypotheses = graph_search(model)(sources, limits)
    assert isinstance(hypotheses, Hypotheses)
    expected = [loop(source, limit) for source, limit in zip(sources, limits, strict=True)]
    # The sources cover all cases: ended and truncated, empty and long, ended at the limit.
    assert {truncated for _, _, truncated in expected} == {True, False}
    assert any(not ids and not truncated for ids, _, truncated in expected)
    assert any(
        len(ids) == limit > 0 and not truncated
        for (ids, _, truncated), limit in zip(expected, limits, strict=True)
    )
    assert max(len(ids) for ids, _, _ in expected) >= 8
    check(hypotheses, expected)


def fixed_step(rows):
    """A decoding step and its cache: the logit of each wanted token is 2, all others are 0."""

    def step(token_ids, index, cache):
        wanted = cache["source"]["wanted"]
        return tf.one_hot(wanted[:, index], VOCAB_SIZE, on_value=2.0), cache

    return step, {"source": {"wanted": tf.constant(rows)}}


def test_by_hand():
    step, cache = fixed_step(
        [[5, 6, EOS, 7, 7], [EOS, 5, 5, 5, 5], [5, 5, 5, 5, 5], [6, EOS, 5, 5, 5]]
    )
    found = greedy_search(step, cache, tf.constant([4, 4, 3, 1]), **SPECIAL)
    found = single(found)
    assert found.ids.tolist() == [[5, 6, 0], [0, 0, 0], [5, 5, 5], [6, 0, 0]]
    assert found.lengths.tolist() == [2, 0, 3, 1]
    assert found.truncated.tolist() == [False, False, True, False]
    # A wanted token has e^2 of e^2 + 8; the sentences have 3 factors, 1, 3 (no end) and 2.
    factors = np.array([3, 1, 3, 2])
    log_probs = factors * (2 - np.log(np.exp(2) + 8))
    np.testing.assert_allclose(found.log_probs, log_probs, rtol=1e-6)
    np.testing.assert_allclose(found.scores, log_probs / ((5 + factors) / 6) ** 0.6, rtol=1e-6)


# The Transformer


@pytest.fixture(scope="module", params=TRANSFORMERS)
def transformer(request):
    return random_model(request.param)


def test_the_cached_search_is_the_uncached_loop(transformer):
    model, special = transformer
    ids = tf.TensorSpec([None, None], tf.int32)
    call = tf.function(model, input_signature=[{"source_ids": ids, "target_ids": ids}])

    def teacher_forced(source, tokens):
        """The logits after the last token, of one source without its padding."""
        source_ids, target_ids = source[source != PAD][None], np.array([tokens], "int32")
        return call({"source_ids": source_ids, "target_ids": target_ids})[0, -1].numpy()

    source_ids = padded_sources()
    limits = np.where(np.arange(len(source_ids)) % 4, 9, 1).astype("int32")
    limits[0] = 0
    found = greedy_search(
        model.decode_step,
        model.start_decoding(source_ids),
        tf.constant(limits),
        **special,
    )
    expected = [
        greedy_loop(lambda tokens, s=source: teacher_forced(s, tokens), limit, special["eos_id"])
        for source, limit in zip(source_ids, limits, strict=True)
    ]
    assert {truncated for _, _, truncated in expected} == {True, False}
    assert any(ids and not truncated for ids, _, truncated in expected)
    assert len({tuple(ids) for ids, _, _ in expected}) >= 6
    ids, lengths, log_probs, _, truncated = single(found)
    rows = [row[:n].tolist() for row, n in zip(ids, lengths, strict=True)]
    assert rows == [row for row, _, _ in expected]
    assert truncated.tolist() == [t for _, _, t in expected]
    np.testing.assert_allclose(log_probs, [p for _, p, _ in expected], atol=1e-4)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_a_graph_from_text_returns_every_sentence(num_layers):
    # With queries scaled before attention's product, the graph of a one-layer model silently
    # returned no sentences; TensorFlow moves the scale behind the product.
    model = Transformer(
        TransformerConfig(11, 11, num_layers=num_layers, d_model=8, num_heads=2, d_ff=12)
    )

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def find(texts):
        source_ids = tf.strings.to_number(tf.strings.split(texts), tf.int32).to_tensor()
        cache = model.start_decoding(source_ids)
        limits = output_limits(tf.math.count_nonzero(source_ids, axis=1, dtype=tf.int32), 6)
        return greedy_search(model.decode_step, cache, limits, **SPECIAL)

    for tensor in find(["5 6 7", "4", "8 9"]):
        assert tensor.shape[0] == 3
