"""Tests of BPE dropout: no text is lost, the library's sampling is the oracle, seeds decide."""

import re
import threading
from collections import Counter

import numpy as np
import pytest
import sentencepiece
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

# No test shall fail because the machine is busy.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

WORDS = "das der die Haus Hund Katze geht läuft schön größer the a house dog cat goes runs".split()
SENTENCES = [
    " ".join(words) + "." for words in np.random.default_rng(0).choice(WORDS, (200, 6)).tolist()
]
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(SENTENCES, 320)


@unhurried
@given(
    texts=st.lists(any_text, max_size=5),
    dropout=st.floats(0, 1),
    seed=st.integers(0, 2**63),
)
@example(["日本語 \U0001f9d1\u200d\U0001f680 \x00 <s> ▁", "", "das  Haus "], 0.5, 1)
@example(["das Haus"], 1.0, 2**63)
def test_no_text_is_lost(tokenizer, texts, dropout, seed):
    ids = tokenizer.sample(texts, dropout, seed)
    assert tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode(texts))
    special = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id}
    assert not any(special & set(row) for row in ids)


@unhurried
@given(text=any_text)
@example("日本語 \U0001f9d1\u200d\U0001f680 \x00 <s> ▁ <0x41> ▁▁")
@example("läuftschönHaus" * 100)
def test_the_ids_are_those_of_encode_if_no_merge_is_left_out(tokenizer, text):
    assert tokenizer.sample([text], 1e-15, 1) == tokenizer.encode([text])


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize("word", ["Katze", "dieläuftKatzeschönHaus"])
def test_each_split_is_as_frequent_as_by_the_library(tokenizer, word, dropout):
    # The second is too long for its splits to be kept.
    texts = [word] * 20_000
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    by_library = library.encode(texts, enable_sampling=True, alpha=dropout, nbest_size=-1)
    counts = [Counter(map(tuple, ids)) for ids in (tokenizer.sample(texts, dropout, 1), by_library)]
    assert len(counts[0]) > 5
    for split in counts[0] | counts[1]:
        # Six standard deviations of the difference of two frequencies, at most.
        assert abs(counts[0][split] - counts[1][split]) < 0.03 * len(texts)


def test_words_are_split_anew_and_more_often_with_more_dropout(tokenizer):
    plain = tokenizer.encode(SENTENCES)
    lengths = [sum(map(len, plain))]
    for dropout in (0.1, 0.5, 1.0):
        ids = tokenizer.sample(SENTENCES, dropout, 1)
        assert tokenizer.decode(ids) == SENTENCES
        lengths.append(sum(map(len, ids)))
    assert lengths == sorted(set(lengths))
    # Without any merge each character, and the space before a word, is a token.
    assert lengths[-1] == sum(len(sentence) + 1 for sentence in SENTENCES)
    # The sentences of one text are split in different ways.
    assert len(set(map(tuple, tokenizer.sample([SENTENCES[0]] * 50, 0.5, 1)))) > 10


def test_without_dropout_the_ids_are_those_of_encode(tokenizer):
    assert tokenizer.sample(SENTENCES, 0.0, 1) == tokenizer.encode(SENTENCES)


def test_a_seed_has_its_segmentations_whatever_was_sampled_before(tokenizer, monkeypatch):
    expected = tokenizer.sample(SENTENCES, 0.1, 5)
    assert tokenizer.sample(SENTENCES, 0.1, 6) != expected
    assert tokenizer.sample(SENTENCES, 0.1, 5) == expected
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    sentencepiece.set_random_generator_seed(77)
    library.encode(SENTENCES, enable_sampling=True, alpha=0.1, nbest_size=-1)
    assert tokenizer.sample(SENTENCES, 0.1, 5) == expected
    # Another tokenizer of the same model, too, which has kept no splits, or may keep but few.
    assert SentencePieceTokenizer(tokenizer.model).sample(SENTENCES, 0.1, 5) == expected
    monkeypatch.setattr("tf_transformer.tokenizers.bpe_dropout._MOST_KEPT", 10)
    assert [tokenizer.sample(SENTENCES, 0.1, 5) for _ in range(2)] == [expected] * 2


def test_threads_that_sample_at_once_do_not_disturb_each_other(tokenizer):
    seeds = range(4)
    expected = [tokenizer.sample(SENTENCES, 0.3, seed) for seed in seeds]
    shared = SentencePieceTokenizer(tokenizer.model)
    barrier = threading.Barrier(len(seeds))
    equal = []

    def sample(seed):
        barrier.wait()
        for _ in range(10):
            equal.append(shared.sample(SENTENCES, 0.3, seed) == expected[seed])

    threads = [threading.Thread(target=sample, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(equal) == 40 and all(equal)


def test_no_texts_and_empty_texts(tokenizer):
    assert tokenizer.sample([], 0.1, 1) == []
    assert tokenizer.sample(["", "", ""], 0.1, 1) == [[], [], []]


@pytest.mark.parametrize(("dropout", "seed"), [(-0.1, 1), (1.1, 1), (float("nan"), 1), (0.1, -1)])
def test_an_argument_out_of_range_is_an_error(tokenizer, dropout, seed):
    with pytest.raises(ValueError, match=re.escape(f"received {dropout=}, {seed=}")):
        tokenizer.sample(["das Haus"], dropout, seed)


def test_a_model_without_merges_is_an_error():
    unigram = SentencePieceTokenizer.train(SENTENCES, 300, "unigram")
    with pytest.raises(ValueError, match="merges of BPE, and this model is none"):
        unigram.sample(["das Haus"], 0.1, 1)


def test_a_text_in_place_of_texts_is_an_error(tokenizer):
    with pytest.raises(TypeError, match=r"expected a list of texts"):
        tokenizer.sample("das Haus", 0.1, 1)
