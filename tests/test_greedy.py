"""Tests of greedy search: over step functions made here, against a loop, and with the model."""

import numpy as np
import pytest
import tensorflow as tf
from step_models import (
    BOS,
    EOS,
    PAD,
    SPECIAL,
    VOCAB_SIZE,
    Bag,
    Markov,
    log_softmax,
    padded_sources,
    random_transformer,
)

from tf_transformer.config import TransformerConfig
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.hypotheses import Hypotheses, output_limits
from tf_transformer.models.transformer import Transformer

MODELS = pytest.mark.parametrize("model", [Markov(), Bag()], ids=["markov", "bag"])


def greedy_loop(logits_of, limit, eos_id=EOS):
    """One row: ids, log-probability and whether it was cut; `logits_of` tells the next logits."""
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


def check(hypotheses, expected):
    """Compares hypotheses with rows of `greedy_loop`."""
    ids, lengths, log_probs, truncated = (tensor.numpy() for tensor in hypotheses)
    assert (ids.dtype, lengths.dtype) == (np.int32, np.int32)
    assert (log_probs.dtype, truncated.dtype) == (np.float32, bool)
    longest = max((len(row) for row, _, _ in expected), default=0)
    padded = [row + [PAD] * (longest - len(row)) for row, _, _ in expected]
    assert ids.shape == (len(expected), longest)
    assert ids.tolist() == padded
    assert lengths.tolist() == [len(row) for row, _, _ in expected]
    assert truncated.tolist() == [cut for _, _, cut in expected]
    np.testing.assert_allclose(log_probs, [p for _, p, _ in expected], rtol=1e-5, atol=1e-5)


def search(model, sources, limits):
    sources, limits = tf.convert_to_tensor(sources), tf.convert_to_tensor(limits)
    return greedy_search(model.decode_step, model.start_decoding(sources), limits, **SPECIAL)


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

    # Limits of one id less than the row would have, as many, one more, and two more.
    natural = [len(loop(source, 15)[0]) for source in sources]
    limits = np.array([max(n + row % 4 - 1, 0) for row, n in enumerate(natural)], np.int32)
    find = graph_search(model) if in_graph else lambda *args: search(model, *args)
    hypotheses = find(sources, limits)
    assert isinstance(hypotheses, Hypotheses)
    expected = [loop(source, limit) for source, limit in zip(sources, limits, strict=True)]
    # All that can happen does: ended and cut, empty and long, ended at the very limit.
    assert {cut for _, _, cut in expected} == {True, False}
    assert any(not ids and not cut for ids, _, cut in expected)
    assert any(
        len(ids) == limit > 0 and not cut
        for (ids, _, cut), limit in zip(expected, limits, strict=True)
    )
    assert max(len(ids) for ids, _, _ in expected) >= 8
    check(hypotheses, expected)


@MODELS
def test_a_row_does_not_depend_on_its_neighbours(model):
    sources, limits = model.sources(10), np.arange(10, dtype=np.int32) % 9
    together = search(model, sources, limits)
    for row in range(10):
        alone = search(model, sources[row : row + 1], limits[row : row + 1])
        length = int(alone.lengths[0])
        assert alone.ids.shape[1] == length == int(together.lengths[row])
        assert together.ids[row, :length].numpy().tolist() == alone.ids[0].numpy().tolist()
        assert not together.ids[row, length:].numpy().any()
        assert bool(together.truncated[row]) == bool(alone.truncated[0])
        np.testing.assert_allclose(together.log_probs[row], alone.log_probs[0], rtol=1e-6)


@MODELS
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_no_rows_give_no_rows(model, in_graph):
    sources = model.sources(0)
    limits = np.zeros([0], np.int32)
    find = graph_search(model) if in_graph else lambda *args: search(model, *args)
    found = find(sources, limits)
    assert found.ids.shape == (0, 0)
    assert found.lengths.shape == found.log_probs.shape == found.truncated.shape == (0,)


@MODELS
def test_a_limit_of_0_in_every_row(model):
    sources = model.sources(16)
    check(
        search(model, sources, np.zeros(16, np.int32)),
        [greedy_loop(lambda tokens, s=s: model.logits(s, tokens), 0) for s in sources],
    )


def fixed_step(rows):
    """A step function and its cache: it wants these tokens, with logits 2 and 0 else."""

    def step(token_ids, index, cache):
        wanted = cache["source"]["wanted"]
        return tf.one_hot(wanted[:, index], VOCAB_SIZE, on_value=2.0), cache

    return step, {"source": {"wanted": tf.constant(rows)}}


def test_by_hand():
    step, cache = fixed_step(
        [[5, 6, EOS, 7, 7], [EOS, 5, 5, 5, 5], [5, 5, 5, 5, 5], [6, EOS, 5, 5, 5]]
    )
    found = greedy_search(step, cache, tf.constant([4, 4, 3, 1]), **SPECIAL)
    assert found.ids.numpy().tolist() == [[5, 6, 0], [0, 0, 0], [5, 5, 5], [6, 0, 0]]
    assert found.lengths.numpy().tolist() == [2, 0, 3, 1]
    assert found.truncated.numpy().tolist() == [False, False, True, False]
    # A wanted token has e^2 of e^2 + 8; rows paid for 3 tokens, 1, 3 (no end) and 2.
    one = 2 - np.log(np.exp(2) + 8)
    np.testing.assert_allclose(found.log_probs, np.array([3, 1, 3, 2]) * one, rtol=1e-6)


def test_the_steps_are_as_many_as_the_longest_row_needs():
    fed = []
    step, cache = fixed_step([[5, 6, EOS, 7], [EOS, 8, 8, 8], *[[4, 4, EOS, 8]] * 3])

    def spying_step(token_ids, index, cache):
        fed.append((int(index), token_ids.numpy().tolist()))
        return step(token_ids, index, cache)

    greedy_search(spying_step, cache, tf.constant([9] * 5), **SPECIAL)
    # The begin id first, then what was chosen; a row that has ended is fed padding.
    assert fed == [(0, [BOS] * 5), (1, [5, PAD, 4, 4, 4]), (2, [6, PAD, 4, 4, 4])]


def test_rows_that_have_ended_leave_the_batch():
    rows = [[4] * n + [EOS] * (12 - n) for n in (1, 9, 1, 5, 0, 1, 7, 9)]
    step, cache = fixed_step(rows)
    sizes = []

    def spying_step(token_ids, index, cache):
        assert len(cache["source"]["wanted"]) == len(token_ids)
        sizes.append(len(token_ids))
        return step(token_ids, index, cache)

    found = greedy_search(spying_step, cache, tf.constant([11] * 8), **SPECIAL)
    assert sizes == [8, 8, 4, 4, 4, 4, 3, 3, 2, 2]
    assert found.lengths.numpy().tolist() == [1, 9, 1, 5, 0, 1, 7, 9]


@pytest.mark.parametrize(("pad_id", "bos_id", "eos_id"), [(0, 2, 3), (8, 1, 0), (3, 0, 8)])
def test_special_ids_are_those_that_are_told(pad_id, bos_id, eos_id):
    step, cache = fixed_step([[5, 6, eos_id, 5], [eos_id, 5, 5, 5]])
    first = []

    def spying_step(token_ids, index, cache):
        first.append(token_ids.numpy().tolist())
        return step(token_ids, index, cache)

    found = greedy_search(
        spying_step, cache, tf.constant([3, 3]), pad_id=pad_id, bos_id=bos_id, eos_id=eos_id
    )
    assert first[0] == [bos_id, bos_id]
    assert found.ids.numpy().tolist() == [[5, 6], [pad_id, pad_id]]
    assert found.lengths.numpy().tolist() == [2, 0]


def test_a_padding_id_that_the_model_chose_counts_as_the_id_it_is():
    # A model that was never told better may choose it; then the row goes on behind it.
    step, cache = fixed_step([[5, PAD, 6, EOS], [5, EOS, 7, 7]])
    found = greedy_search(step, cache, tf.constant([9, 9]), **SPECIAL)
    ids, lengths = found.ids.numpy().tolist(), found.lengths.numpy().tolist()
    rows = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    # Either it is never chosen, or it is one of the ids before the end.
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


@pytest.fixture(scope="module", params=[True, False], ids=["norm_first", "post_norm"])
def transformer(request):
    return random_transformer(request.param)


def test_the_cached_search_is_the_uncached_loop(transformer):
    model, special = transformer
    ids = tf.TensorSpec([None, None], tf.int32)
    call = tf.function(model, input_signature=[{"source_ids": ids, "target_ids": ids}])

    def teacher_forced(source, tokens):
        """The logits after the last of the tokens, of one source without its padding."""
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
    assert {cut for _, _, cut in expected} == {True, False}
    assert any(ids and not cut for ids, _, cut in expected)
    assert len({tuple(ids) for ids, _, _ in expected}) >= 6
    ids, lengths, log_probs, truncated = (tensor.numpy() for tensor in found)
    rows = [row[:n].tolist() for row, n in zip(ids, lengths, strict=True)]
    assert rows == [row for row, _, _ in expected]
    assert truncated.tolist() == [cut for _, _, cut in expected]
    np.testing.assert_allclose(log_probs, [p for _, p, _ in expected], atol=1e-4)


def test_log_probs_are_those_of_teacher_forcing(transformer):
    model, special = transformer
    # One call for the whole batch, padding and all, as in training.
    source_ids = padded_sources()
    limits = output_limits((source_ids != PAD).sum(axis=1).astype("int32"), max_length=15)
    found = greedy_search(model.decode_step, model.start_decoding(source_ids), limits, **special)
    ids, lengths, log_probs, truncated = (tensor.numpy() for tensor in found)
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
        pairs = zip(found.ids.numpy(), found.lengths.numpy(), strict=True)
        return [row[:length].tolist() for row, length in pairs]

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
def test_a_memory_of_fixed_size_changes_nothing(transformer, compiled):
    model, special = transformer
    source_ids, num_steps = padded_sources(), 12
    limits = tf.range(len(source_ids)) % num_steps

    def find(num_steps):
        cache = model.start_decoding(source_ids, num_steps=num_steps)
        return greedy_search(model.decode_step, cache, limits, num_steps=num_steps, **special)

    growing, fixed = find(None), tf.function(find, jit_compile=compiled)(num_steps)
    assert fixed.ids.shape == (len(source_ids), num_steps)
    width = growing.ids.shape[1]
    assert 8 <= width < num_steps
    assert fixed.ids[:, :width].numpy().tolist() == growing.ids.numpy().tolist()
    assert (fixed.ids[:, width:].numpy() == PAD).all()
    assert fixed.lengths.numpy().tolist() == growing.lengths.numpy().tolist()
    assert fixed.truncated.numpy().tolist() == growing.truncated.numpy().tolist()
    np.testing.assert_allclose(fixed.log_probs, growing.log_probs, atol=1e-5)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_a_graph_from_text_returns_every_row(num_layers):
    # Queries scaled before attention's product made of one layer a graph that returned no rows,
    # without a word; TensorFlow moves the scale behind the product.
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
