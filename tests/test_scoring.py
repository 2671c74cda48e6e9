"""The functions `score` and `align` of a translator: known answers, and every kind of text."""

import numpy as np
import pytest
import tensorflow as tf
from letters import MAX_LENGTH, VOCAB_SIZE, EchoModel, random_model, translator_of
from phrase_models import padded

import tf_transformer as tt


@pytest.fixture(scope="module")
def model(randomise):
    config = tt.TransformerConfig(
        VOCAB_SIZE, VOCAB_SIZE, num_layers=3, d_model=16, num_heads=4, d_ff=32
    )
    return randomise(tt.Transformer(config))


@pytest.fixture(scope="module")
def module(model, letter_tokenizer):
    return translator_of(model, letter_tokenizer).module


@pytest.fixture(scope="module")
def pairs(sentences):
    """Sources and targets of other lengths; one side or both are empty or too long."""
    long = "a b " * MAX_LENGTH
    sources = [*sentences[:20], "", "a b", "", long, "a", long]
    return sources, [*sentences[20:40], "c d", "", "", "b", long, long]


def run(function, *sides):
    texts = [tf.constant([*side], tf.string) for side in sides]
    return {name: tensor.numpy() for name, tensor in function(*texts).items()}


def ids_of(tokenizer, source, target):
    """What the model takes and should predict for a pair: three rows of ids."""
    source, target = (tokenizer.encode([text])[0][: MAX_LENGTH - 1] for text in (source, target))
    begin, end = [tokenizer.bos_id], [tokenizer.eos_id]
    return [*source, *end], [*begin, *target], [*target, *end]


@pytest.fixture(scope="module")
def known(model, letter_tokenizer, pairs):
    """Of each pair ids, logits `(T, V)` and the attention of every layer `(layers, H, T, S)`."""
    ids = [ids_of(letter_tokenizer, *pair) for pair in zip(*pairs, strict=True)]
    sources, targets = (padded([row[side] for row in ids], 0) for side in (0, 1))
    logits, weights = model((sources, targets), training=False, return_attention_scores=True)
    logits, weights = logits.numpy().astype(float), np.stack(weights["cross"], axis=1)
    return [
        (*sides, logits[row, : len(sides[1])], weights[row, ..., : len(sides[1]), : len(sides[0])])
        for row, sides in enumerate(ids)
    ]


def test_scores_are_the_log_softmax_of_the_logits(module, known, pairs):
    found = run(module.score, *pairs)
    for row, (_, _, labels, logits, _) in enumerate(known):
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        expected = sum(log_probs[step, label] for step, label in enumerate(labels))
        assert found["log_prob"][row] == pytest.approx(expected, abs=1e-4)
        assert found["num_tokens"][row] == len(labels)
    assert found["truncated"].tolist() == [False] * (len(pairs[0]) - 3) + [True] * 3


def test_the_attention_is_the_mean_of_all_layers_but_the_first_between_the_subwords(
    model, letter_tokenizer, known, pairs
):
    found = run(translator_of(model, letter_tokenizer).module.align, *pairs)
    size = found["target_lengths"].max(), found["source_lengths"].max()
    assert found["attention"].shape == (len(pairs[0]), *size)
    for row, (source_ids, target_ids, _, _, weights) in enumerate(known):
        mean = weights[1:].mean(axis=(0, 1))
        expected = np.zeros_like(found["attention"][row])
        expected[: len(target_ids) - 1, : len(source_ids)] = mean[:-1]  # but for the end
        np.testing.assert_allclose(found["attention"][row], expected, atol=1e-5)
        assert source_ids[-1] == letter_tokenizer.eos_id
        for side, ids in (("source", source_ids), ("target", target_ids[1:])):
            subwords = [subword.decode() for subword in found[f"{side}_subwords"][row]]
            padding = [""] * (len(subwords) - len(ids))
            assert subwords == letter_tokenizer.subwords(ids) + padding
            assert found[f"{side}_lengths"][row] == len(ids)


def test_rows_of_tokens_sum_to_one_in_bfloat16_too(randomise, letter_tokenizer, pairs):
    model = random_model(randomise, dtype="bfloat16")
    found = run(translator_of(model, letter_tokenizer).module.align, *pairs)
    is_target = np.arange(found["attention"].shape[1]) < found["target_lengths"][:, None]
    np.testing.assert_allclose(found["attention"].sum(axis=2), is_target, atol=1e-6)


@pytest.mark.parametrize("name", ["score", "align"])
def test_sides_of_different_numbers_are_an_error(in_memory, name):
    for number in (0, 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="equally many texts"):
            run(getattr(in_memory.module, name), ["a b"] * number, ["a b"] * 3)


TRANSLATING = ("serving_default", "translate_nbest", "translate_document")


def test_a_model_has_the_signatures_that_its_call_allows(model, letter_tokenizer):
    class Callable(EchoModel):
        def __call__(self, inputs, training=False):
            return tf.zeros([*tf.unstack(tf.shape(inputs["target_ids"])), VOCAB_SIZE])

    kinds = {EchoModel(VOCAB_SIZE): set(), Callable(VOCAB_SIZE): {"score"}}
    for kind, more in {**kinds, model: {"score", "align"}}.items():
        signatures = translator_of(kind, letter_tokenizer).module.signatures()
        assert set(signatures) == {*more, *TRANSLATING}


# --- The translator -------------------------------------------------------------------------


def test_what_cannot_be_scored_is_refused(in_memory, echo_translator):
    """What can be is tested in `test_client.py`, against a server."""
    assert in_memory.score([], []) == []
    with pytest.raises(ValueError, match="zip"):
        in_memory.score(["a"], [])
    with pytest.raises(TypeError, match="must be a list of str; received str"):
        in_memory.score("a", ["b"])
    for name in ("score", "align"):
        with pytest.raises(ValueError, match=f"has no {name}"):
            getattr(echo_translator, name)(["a"], ["a"])
