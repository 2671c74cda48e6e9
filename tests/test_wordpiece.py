"""Tests of BERT's tokenizer; test_importing_bert.py compares its ids with Hugging Face's."""

import json
import pickle

import pytest
import tensorflow as tf
from test_tokenizer import ODD, decode_in_graph

from tf_transformer.tokenizers import WordPieceTokenizer, load_tokenizer
from tf_transformer.tokenizers.sentencepiece import TokenizerError
from tf_transformer.tokenizers.wordpiece import SPECIAL, wordpiece_model

WORDS = "the house hou play ##ing ##ed café cafe Haus haus 世界 世 界 σοφοσ".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-()[]\"/:%ß"
SUBWORDS = [*SPECIAL.values(), *WORDS, *LETTERS, *(f"##{letter}" for letter in "abcdesß01")]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(wordpiece_model(SUBWORDS))


def split(tokenizer, text):
    return " ".join(tokenizer.subwords(tokenizer.encode([text])[0]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The houses, playing!", "the house ##s , play ##ing !"),  # the longest subword first
        ("played houses", "play ##ed house ##s"),
        ("housy playz hous", "[UNK] [UNK] hou ##s"),  # as no subword continues them
        ("Café\tCAFE\u0301\nthe\u00a0\u2028house", "cafe cafe the house"),
        ("the\x07\u200b\ufeff hou\u00adse", "the house"),
        ("ab世界ba", "a ##b 世 界 b ##a"),
        ("ΣΟΦΟΣ aß", "σοφοσ a ##ß"),
        ("[SEP] [MASK]", "[ [UNK] ] [ [UNK] ]"),
        ("ß" * 100, " ".join(["ß", *["##ß"] * 99])),
        ("ß" * 101, "[UNK]"),
        (" \t ", ""),
    ],
)  # fmt: skip
def test_how_a_text_is_split(tokenizer, text, expected):
    assert split(tokenizer, text) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lower_case": False}, "[UNK] cafe 世 界"),
        ({"lower_case": False, "strip_accents": False}, "[UNK] café 世 界"),
        ({"strip_accents": False}, "haus café 世 界"),
        ({"split_chinese": False}, "haus cafe 世界"),
    ],
)
def test_each_setting_changes_the_split(settings, expected):
    subwords = [word for word in SUBWORDS if word != "Haus"]
    tokenizer = WordPieceTokenizer(wordpiece_model(subwords, **settings))
    assert split(tokenizer, "Haus café 世界") == expected


def test_encoding_is_tokenizing_in_a_graph(tokenizer):
    in_graph = tf.function(tokenizer.tokenize, autograph=False)(tf.constant(ODD))
    assert in_graph.dtype == tf.int32 and in_graph.to_list() == tokenizer.encode(ODD)
    assert tokenizer.encode([]) == []
    assert tokenizer.vocab_size == len(SUBWORDS)
    special = tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id
    assert special == (0, 1, 2, 3)
    with pytest.raises(TypeError, match="list of texts"):
        tokenizer.encode("a text")


def test_text_comes_back():
    texts = [
        "the house, playing!", "a house (in a cafe) is 3.5 or 1,000 to 10:30.", "1.5.30 is 3:5:1.",
        "it's a well-known play/house", 'a "the house" b: [c]? 50%', "“the house” is „a house“",
        "世界世界，世。 the", "",
    ]  # fmt: skip
    words = [*SUBWORDS, *"in is or to it well known “ ” „ ， 。".split(), "s"]
    tokenizer = WordPieceTokenizer(wordpiece_model(dict.fromkeys(words)))
    assert decode_in_graph(tokenizer, tokenizer.encode(texts)) == texts


def test_special_and_unknown_tokens_are_no_text(tokenizer):
    ids = tokenizer.encode(["the housy play"])
    assert tokenizer.unk_id in ids[0]
    row = [tokenizer.bos_id, *ids[0], 4, tokenizer.eos_id, tokenizer.pad_id]
    assert decode_in_graph(tokenizer, [row]) == ["the play"]
    strings = tokenizer.id_to_string(tf.ragged.constant(ids, tf.int32)).to_list()
    assert [[s.decode() for s in row] for row in strings] == [tokenizer.subwords(r) for r in ids]


def test_round_trip_through_a_file(tokenizer, tmp_path):
    for settings in ({}, {"lower_case": False}):
        before = WordPieceTokenizer(wordpiece_model(SUBWORDS, **settings))
        before.save(tmp_path / "source.model")
        expected = before.encode(ODD)
        for after in (
            load_tokenizer(tmp_path / "source.model"),
            pickle.loads(pickle.dumps(before)),
        ):
            assert type(after) is WordPieceTokenizer and after.model == before.model
            assert after.encode(ODD) == expected


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (b"{", "no WordPiece model"),
        (b"[]", "no WordPiece model"),
        (json.dumps({"lower_case": True}).encode(), "no WordPiece model"),
        (wordpiece_model([s for s in SUBWORDS if s != "[SEP]"]), r"no subword \[SEP\]"),
        (wordpiece_model([*SUBWORDS, "the"]), "twice"),
    ],
)
def test_a_damaged_model_is_an_error_that_names_the_file(model, words, tmp_path):
    (tmp_path / "damaged.model").write_bytes(model)
    with pytest.raises(TokenizerError, match=f"damaged.model: .*{words}"):
        WordPieceTokenizer.load(tmp_path / "damaged.model")
