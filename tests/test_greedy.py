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
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_greedy_search_is_the_loop_row_by_row(model, in_graph):
    sources = model.sources(60)

    def loop(source, limit):
        return greedy_loop(lambda tokens: model.logits(source, tokens), limit)

    # Limits of one token less than the sentence would have, as many, one more, and two more.
    natural = [len(loop(source, 15)[0]) for source in sources]
    limits = np.array([max(n + row % 4 - 1, 0) for row, n in enumerate(natural)], np.int32)
    find = graph_search(model) if in_graph else lambda *args: search(model, *args)
    hypotheses = find(sources, limits)
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


@MODELS
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_scores_have_the_given_length_penalty(model, length_penalty):
    sources, limits = model.sources(16), np.full(16, 4, np.int32)
    found = search(model, sources, limits, length_penalty=length_penalty)
    expected = [greedy_loop(lambda tokens, s=s: model.logits(s, tokens), 4) for s in sources]
    assert len({len(row) for row, _, _ in expected}) > 1
    check(found, expected, length_penalty)


@MODELS
def test_a_sentence_does_not_depend_on_its_batch(model):
    sources, limits = model.sources(10), np.arange(10, dtype=np.int32) % 9
    together = single(search(model, sources, limits))
    for row in range(10):
        alone = single(search(model, sources[row : row + 1], limits[row : row + 1]))
        length = int(alone.lengths[0])
        assert alone.ids.shape[1] == length == int(together.lengths[row])
        assert together.ids[row, :length].tolist() == alone.ids[0].tolist()
        assert not together.ids[row, length:].any()
        assert bool(together.truncated[row]) == bool(alone.truncated[0])
        np.testing.assert_allclose(together.log_probs[row], alone.log_probs[0], rtol=1e-6)


@MODELS
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_an_empty_batch_gives_an_empty_result(model, in_graph):
    sources = model.sources(0)
    limits = np.zeros([0], np.int32)
    find = graph_search(model) if in_graph else lambda *args: search(model, *args)
    found = find(sources, limits)
    assert found.ids.shape == (0, 1, 0)
    for field in ("lengths", "log_probs", "scores", "truncated"):
        assert getattr(found, field).shape == (0, 1), field


@MODELS
def test_a_limit_of_0_in_every_sentence(model):
    sources = model.sources(16)
    check(
        search(model, sources, np.zeros(16, np.int32)),
        [greedy_loop(lambda tokens, s=s: model.logits(s, tokens), 0) for s in sources],
    )


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


def test_there_are_as_many_steps_as_the_longest_sentence_needs():
    fed = []
    step, cache = fixed_step([[5, 6, EOS, 7], [EOS, 8, 8, 8], *[[4, 4, EOS, 8]] * 3])

    def spying_step(token_ids, index, cache):
        fed.append((int(index), token_ids.numpy().tolist()))
        return step(token_ids, index, cache)

    greedy_search(spying_step, cache, tf.constant([9] * 5), **SPECIAL)
    # The begin token first, then the chosen tokens; after the end a sentence gets padding.
    assert fed == [(0, [BOS] * 5), (1, [5, PAD, 4, 4, 4]), (2, [6, PAD, 4, 4, 4])]


def test_sentences_that_are_done_are_removed_from_the_batch():
    rows = [[4] * n + [EOS] * (12 - n) for n in (1, 9, 1, 5, 0, 1, 7, 9)]
    step, cache = fixed_step(rows)
    sizes = []

    def spying_step(token_ids, index, cache):
        assert len(cache["source"]["wanted"]) == len(token_ids)
        sizes.append(len(token_ids))
        return step(token_ids, index, cache)

    found = single(greedy_search(spying_step, cache, tf.constant([11] * 8), **SPECIAL))
    assert sizes == [8, 8, 4, 4, 4, 4, 3, 3, 2, 2]
    assert found.lengths.tolist() == [1, 9, 1, 5, 0, 1, 7, 9]


@pytest.mark.parametrize(("pad_id", "bos_id", "eos_id"), [(0, 2, 3), (8, 1, 0), (3, 0, 8)])
def test_special_ids_are_the_arguments(pad_id, bos_id, eos_id):
    step, cache = fixed_step([[5, 6, eos_id, 5], [eos_id, 5, 5, 5]])
    first = []

    def spying_step(token_ids, index, cache):
        first.append(token_ids.numpy().tolist())
        return step(token_ids, index, cache)

    found = greedy_search(
        spying_step, cache, tf.constant([3, 3]), pad_id=pad_id, bos_id=bos_id, eos_id=eos_id
    )
    assert first[0] == [bos_id, bos_id]
    assert found.ids.numpy().tolist() == [[[5, 6]], [[pad_id, pad_id]]]
    assert found.lengths.numpy().tolist() == [[2], [0]]


def test_a_padding_token_that_the_model_chose_counts_as_a_token():
    # A model that was not trained to avoid padding may choose it; then the sentence continues.
    step, cache = fixed_step([[5, PAD, 6, EOS], [5, EOS, 7, 7]])
    found = single(greedy_search(step, cache, tf.constant([9, 9]), **SPECIAL))
    ids, lengths = found.ids.tolist(), found.lengths.tolist()
    rows = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    # Either it is never chosen, or it is one of the tokens before the end.
    assert rows[1] == [5]
    assert PAD not in ids[0] or rows[0] == [5, PAD, 6]


@MODELS
def test_one_trace_serves_all_sizes(model):
    sources = model.sources(16)
    find = graph_search(model)
    for num_rows, limit in ((1, 3), (4, 11), (16, 5), (0, 2)):
        find(sources[:num_rows], np.full(num_rows, limit, np.int32))
    assert find.experimental_get_tracing_count() == 1


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


def test_log_probs_are_those_of_teacher_forcing(transformer):
    model, special = transformer
    # One call for the whole batch, padding and all, as in training.
    source_ids = padded_sources()
    limits = output_limits((source_ids != PAD).sum(axis=1).astype("int32"), max_length=15)
    found = greedy_search(model.decode_step, model.start_decoding(source_ids), limits, **special)
    ids, lengths, log_probs, _, truncated = single(found)
    begin = np.full((len(ids), 1), BOS, "int32")
    target_ids = np.concatenate([begin, ids], axis=1)
    logits = model({"source_ids": source_ids, "target_ids": target_ids}).numpy()
    for row, length in enumerate(lengths):
        labels = [*ids[row, :length], *([] if truncated[row] else [special["eos_id"]])]
        forced = sum(log_softmax(logits[row, t])[label] for t, label in enumerate(labels))
        assert log_probs[row] == pytest.approx(forced, abs=1e-4)
        for t, label in enumerate(labels):
            assert logits[row, t].argmax() == label


def test_one_trace_of_the_transformer_serves_all_lengths(transformer):
    model, special = transformer

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def find(source_ids):
        lengths = tf.reduce_sum(tf.cast(source_ids != PAD, tf.int32), axis=1)
        limits = output_limits(lengths, 9)
        cache = model.start_decoding(source_ids)
        return greedy_search(model.decode_step, cache, limits, **special)

    def rows_of(found):
        found = single(found)
        return [row[:n].tolist() for row, n in zip(found.ids, found.lengths, strict=True)]

    source_ids = padded_sources()
    together = rows_of(find(source_ids))
    assert rows_of(find(source_ids[:5])) == together[:5]
    # More padding, and none.
    wider = np.pad(source_ids[:8], ((0, 0), (0, 6)))
    assert rows_of(find(wider)) == together[:8]
    for row in range(8):
        source = source_ids[row][source_ids[row] != PAD]
        assert rows_of(find(source[None])) == together[row : row + 1]
    assert find(source_ids[:0]).ids.shape[0] == 0
    assert find.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "compiled"])
def test_a_kv_cache_of_fixed_size_gives_the_same_result(transformer, compiled):
    model, special = transformer
    source_ids, num_steps = padded_sources(), 12
    limits = tf.range(len(source_ids)) % num_steps

    def find(num_steps):
        cache = model.start_decoding(source_ids, num_steps=num_steps)
        return greedy_search(model.decode_step, cache, limits, num_steps=num_steps, **special)

    growing = single(find(None))
    fixed = single(tf.function(find, jit_compile=compiled)(num_steps))
    assert fixed.ids.shape == (len(source_ids), num_steps)
    width = growing.ids.shape[1]
    assert 6 <= width < num_steps
    assert fixed.ids[:, :width].tolist() == growing.ids.tolist()
    assert (fixed.ids[:, width:] == PAD).all()
    assert fixed.lengths.tolist() == growing.lengths.tolist()
    assert fixed.truncated.tolist() == growing.truncated.tolist()
    np.testing.assert_allclose(fixed.log_probs, growing.log_probs, atol=1e-5)
    np.testing.assert_allclose(fixed.scores, growing.scores, atol=1e-5)


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
