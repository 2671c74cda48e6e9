"""Trimmed vocabularies: texts are split as before, and logits of the tokens left are the same."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from small_models import CONFIGS, small_config, small_model

from tf_transformer.models.architectures import build_model
from tf_transformer.runs.trimming import trim_model
from tf_transformer.tokenizers import subset
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, TokenizerError
from tf_transformer.tokenizers.subset import require_same_splits, subset_tokenizer, used_ids

TYPES = pytest.mark.parametrize("kind", ["bpe", "unigram"])
NUM_FIXED = 260  # special ids and bytes
VOCAB_SIZE = 600


@pytest.fixture(scope="module")
def tokenizers(phrases):
    sentences = [*phrases.train.sources, *phrases.train.targets]
    kinds = ("bpe", "unigram")
    return {kind: SentencePieceTokenizer.train(sentences, VOCAB_SIZE, kind) for kind in kinds}


@pytest.fixture(scope="module")
def words(phrases):
    lines = [*phrases.train.sources, *phrases.train.targets]
    return sorted({word for line in lines for word in line.split()})


def trimmed_for(tokenizer, texts):
    return subset_tokenizer(tokenizer, used_ids(tokenizer, texts))


# The tokenizer


@TYPES
@given(data=st.data())
def test_texts_are_split_as_before(tokenizers, words, kind, data):
    word = st.one_of(st.sampled_from(words), st.text(st.characters(exclude_categories=["Cs"])))
    texts = data.draw(st.lists(st.lists(word, max_size=8).map(" ".join), min_size=1, max_size=4))
    tokenizer = tokenizers[kind]
    trimmed, ids = trimmed_for(tokenizer, texts)
    before, after = tokenizer.encode(texts), trimmed.encode(texts)
    assert [ids[row].tolist() for row in after] == before
    assert [trimmed.subwords(r) for r in after] == [tokenizer.subwords(r) for r in before]
    assert trimmed.tokenize(tf.constant(texts)).to_list() == after


@TYPES
def test_other_texts_are_not_lost_and_need_no_more_bytes(tokenizers, phrases, kind):
    tokenizer = tokenizers[kind]
    trimmed, ids = trimmed_for(tokenizer, phrases.test.sources[:3])
    assert NUM_FIXED < len(ids) == trimmed.vocab_size < 0.6 * VOCAB_SIZE
    assert list(ids[:NUM_FIXED]) == list(range(NUM_FIXED))
    others = [*phrases.test.sources[3:], *phrases.test.targets, "naïve 😀 句"]
    rows = trimmed.encode(others)
    assert max(map(max, rows)) < trimmed.vocab_size
    assert trimmed.tokenize(tf.constant(others)).to_list() == rows
    assert trimmed.decode(rows) == tokenizer.decode(tokenizer.encode(others))
    num_bytes = [sum(i < NUM_FIXED for i in row) for row in rows]
    assert num_bytes == [sum(i < NUM_FIXED for i in row) for row in tokenizer.encode(others)]


def test_bpe_needs_the_subwords_that_are_merged(tokenizers, phrases, monkeypatch):
    tokenizer, texts = tokenizers["bpe"], phrases.test.sources
    monkeypatch.setattr(subset, "_merges", lambda piece, scores: [])
    trimmed, ids = trimmed_for(tokenizer, texts)
    with pytest.raises(TokenizerError, match=r"cannot be trimmed: '.*' would be split another way"):
        require_same_splits(tokenizer, trimmed, ids, texts)


# The model

SOURCE_IDS, TARGET_IDS = [0, 1, 2, 3, 5, 7, 8, 11, 12], [0, 1, 2, 3, 4, 6, 10]
CASES = {
    **{name: (lambda name=name: small_model(name), SOURCE_IDS, TARGET_IDS) for name in CONFIGS},
    "two vocabularies of one size": (
        lambda: build_model(small_config("transformer", tie_embeddings=False)),
        [0, 1, 2, 3, 5, 7, 8, 11],
        [0, 1, 2, 3, 4, 6, 10, 12],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_same(randomise, case):
    make, source_ids, target_ids = CASES[case]
    model = randomise(make())
    sizes = model.config.source_vocab_size, model.config.target_vocab_size
    if case in CONFIGS and sizes[0] == sizes[1]:
        target_ids = source_ids
    pad_id = target_ids.index(model.config.pad_id)
    sizes = {"source_vocab_size": len(source_ids), "target_vocab_size": len(target_ids)}
    config = dataclasses.replace(model.config, **sizes, pad_id=pad_id)
    trimmed = trim_model(model, config, source_ids, target_ids)
    rng = np.random.default_rng(0)
    source = rng.integers(4, len(source_ids), (2, 5))
    target = rng.integers(4, len(target_ids), (2, 6))
    target[:, 0] = 2  # the begin, which both sides keep
    source[1, 3:] = target[1, 4:] = pad_id
    before = model(
        {"source_ids": np.take(source_ids, source), "target_ids": np.take(target_ids, target)}
    )
    after = trimmed({"source_ids": source, "target_ids": target})
    np.testing.assert_allclose(after, np.take(before, target_ids, -1), atol=1e-5)
    assert trimmed.count_params() < model.count_params()
    assert np.std(after) > 0.03


def test_a_weight_that_depends_on_a_vocabulary_in_another_way_is_an_error():
    model = build_model(small_config("transformer"))
    with pytest.raises(ValueError, match="shape"):
        trim_model(model, small_config("transformer"), [0, 1, 2, 3], [0, 1, 2, 3])
