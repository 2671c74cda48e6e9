"""Tests of the SentencePiece tokenizer: both engines agree, and no text is lost."""

import io
import random
import re
import string
import unicodedata

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from tf_transformer.errors import ConfigError, InputError
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, VocabularySizeError

WORDS = (
    "das der die Haus Hund Katze geht läuft schön größer ist nicht und blau heute morgen "
    "the a house dog cat goes runs nice bigger is not and blue today tomorrow"
).split()


TYPES = pytest.mark.parametrize("model_type", ["bpe", "unigram"])


def make_sentences():
    generator = random.Random(0)
    return [
        " ".join(generator.choices(WORDS, k=generator.randint(2, 9))) + generator.choice(".?!")
        for _ in range(300)
    ]


SENTENCES = make_sentences()
ODD = [
    "", " ", "    ", "\t", "das\tHaus", "das\nHaus", " das Haus", "das Haus  ", "das   Haus",
    "das 😀 Haus", "👩\u200d👩\u200d👧", "你好，世界", "مرحبا بالعالم", "sch\u00f6n", "scho\u0308n",
    "\u0301", "ﬁne", "Ｈａｕｓ", "das\u00a0Haus", "das\u200bHaus", "\ufeffdas", "das\x07Haus\x00",
    "das▁Haus", "<s> das <pad> </s> <unk>", "<0x41>", "\U0010ffff", "x" * 5000, " ".join(SENTENCES),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(SENTENCES, 330)


def special_ids(tokenizer):
    return tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id


def decode_in_graph(tokenizer, ids):
    texts = tokenizer.detokenize(tf.ragged.constant(ids, tf.int32, ragged_rank=1))
    return [text.decode("utf-8", "replace") for text in texts.numpy()]


# Two engines


def test_the_graph_and_the_library_agree_and_no_text_depends_on_the_batch(tokenizer):
    texts = [*SENTENCES, *ODD]
    graph, ids = tokenizer.tokenize(texts), tokenizer.encode(texts)
    assert graph.dtype == tf.int32 and graph.to_list() == ids
    assert [tokenizer.encode([text])[0] for text in ODD] == ids[len(SENTENCES) :]
    assert decode_in_graph(tokenizer, ids) == tokenizer.decode(ids)


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
@example(["\x00", "日本語 \U0001f9d1\u200d\U0001f680", "</s><s> <unk> <pad> <0x0A> <0xFF> ▁"])
def test_any_text_is_tokenized_alike_and_never_unknown(tokenizer, texts):
    ids = tokenizer.tokenize(tf.constant(texts, tf.string)).to_list()
    assert ids == tokenizer.encode(texts)
    assert not set(special_ids(tokenizer)) & {i for row in ids for i in row}
    once = tokenizer.decode(ids)
    assert decode_in_graph(tokenizer, ids) == once
    assert tokenizer.decode(tokenizer.encode(once)) == once


@given(ids=st.lists(st.lists(st.integers(0, 329), max_size=9), max_size=5))
def test_the_graph_and_the_library_detokenize_any_ids_alike(tokenizer, ids):
    # A model may emit any ids: special ones, and bytes that are no UTF-8.
    assert decode_in_graph(tokenizer, [*ids, []]) == tokenizer.decode([*ids, []])


# No text is lost


# Letters, marks, digits, punctuation, symbols and format characters, in words with one space
# between, since white space is collapsed.
characters = st.characters(categories=["L", "M", "N", "P", "S", "Cf"])
words = st.lists(st.text(characters, min_size=1, max_size=8), max_size=5)


@given(text=words.map(" ".join))
@example("10 m² … ½ ™ ﬁ e\u0301 ① Ⅳ \ufffd ▁▂ Häu\u00adser zu\u200bsam \u1100\u1161\u11a8")
def test_text_survives_character_by_character(tokenizer, text):
    """But what nobody sees, and SentencePiece's own sign for a space."""
    (found,) = tokenizer.decode(tokenizer.encode([text]))
    visible = text.translate(dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"), None))
    expected = unicodedata.normalize("NFC", visible.replace("▁", "_"))
    assert unicodedata.normalize("NFC", " ".join(found.split(" "))) == " ".join(expected.split())


def test_letters_are_composed_unless_a_tokenizer_is_told_otherwise(tokenizer):
    """Each letter with marks, in both orders of two marks."""
    forms = {unicodedata.normalize("NFD", chr(code)) for code in range(0x30000)}
    marked = [form for form in forms if len(form) > 1] + ["\u212b", "e\u0302\u0323", "ê\u0323"]
    ids = tokenizer.encode(marked)
    composed = [unicodedata.normalize("NFC", text) for text in marked]
    assert tokenizer.decode(ids) == composed and len(marked) > 12_000
    assert tokenizer.tokenize(tf.constant(marked)).to_list() == ids
    plain = SentencePieceTokenizer.train(SENTENCES, 330, normalization="none")
    texts = ["e\u0301", "Häu\u00adser", "zu\u200bsam"]
    assert plain.decode(plain.encode([*texts, "a▁b"])) == [*texts, "a_b"]


def test_text_of_any_form_trains_the_same_tokenizer():
    models = [
        SentencePieceTokenizer.train([unicodedata.normalize(form, s) for s in SENTENCES], 330).model
        for form in ("NFC", "NFD")
    ]
    assert models[0] == models[1]


def test_white_space_is_one_space_and_an_unseen_character_is_its_bytes(tokenizer):
    text = "a\tb\u00a0c\u3000\u2009d\r\ne\u2028"
    assert tokenizer.encode([text]) == tokenizer.encode(["a b c d e"])
    subwords = tokenizer.subwords(tokenizer.encode(["界"])[0])
    assert subwords[-3:] == [f"<0x{byte:02X}>" for byte in "界".encode()]


RARE = "".join(map(chr, range(0x4E00, 0x4E00 + 40)))


@pytest.mark.parametrize(("coverage", "size", "num_rare"), [(0.9995, 300, 0), (1.0, 340, 40)])
def test_rare_characters_take_no_place_in_the_vocabulary(coverage, size, num_rare):
    """They are less than 0.05 % of this text, so they are bytes, which are trained by them."""
    sentences = ["der Hund und die Katze"] * 5000 + list(RARE)
    tokenizer = SentencePieceTokenizer.train(sentences, size, character_coverage=coverage)
    subwords = tokenizer.subwords(range(tokenizer.vocab_size))
    assert len(set(RARE) & set(subwords)) == num_rare
    assert tokenizer.decode(tokenizer.encode([RARE])) == [RARE]


def test_user_symbols_are_one_subword_each():
    sentences = ["<BT> der Hund und die Katze", "der Hund >>deu<<"] * 50
    symbols = ["<BT>", ">>deu<<"]
    tokenizer = SentencePieceTokenizer.train(sentences, 290, user_symbols=symbols)
    for symbol, text in zip(symbols, ("<BT> der Hund", "die>>deu<< Katze"), strict=True):
        ids = tokenizer.encode([text])
        assert symbol in tokenizer.subwords(ids[0])
        assert tokenizer.decode(ids) == [text] and tokenizer.tokenize([text]).to_list() == ids


# Training


def train_by_hand(**settings):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=310,
        byte_fallback=True, minloglevel=2, **settings,
    )  # fmt: skip
    return model.getvalue()


def test_special_ids_are_read_from_the_model(tokenizer):
    assert special_ids(tokenizer) == (0, 1, 2, 3) and tokenizer.vocab_size == 330
    assert tokenizer.subwords(range(4)) == ["<pad>", "<unk>", "<s>", "</s>"]
    other = SentencePieceTokenizer(train_by_hand(pad_id=3, unk_id=2, bos_id=1, eos_id=0))
    assert special_ids(other) == (3, 2, 1, 0) and other.vocab_size == 310


@pytest.mark.parametrize("content", ["nothing", "junk", "half", "pad", "bos", "eos"])
def test_a_file_that_is_no_model_or_lacks_an_id_is_named(tokenizer, tmp_path, content, capfd):
    path = tmp_path / "source.model"
    made = {"nothing": b"", "junk": b"junk", "half": tokenizer.model[:3000]}
    ids = {"pad_id": 3, "unk_id": 0, "bos_id": 1, "eos_id": 2, f"{content}_id": -1}
    path.write_bytes(made[content] if content in made else train_by_hand(**ids))
    with pytest.raises(InputError) as caught:
        SentencePieceTokenizer.load(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}: ")
    assert ("Restore" if content in made else "lacks a padding, begin or end id. Train") in line
    assert capfd.readouterr() == ("", "")


def test_a_large_text_is_sampled_always_alike(monkeypatch):
    sentences = make_sentences()
    half = len(sentences) // 2
    # If it were the first half, the letters of the second would not be subwords.
    text = [*map(str.lower, sentences[:half]), *map(str.upper, sentences[half:])]
    monkeypatch.setattr("tf_transformer.tokenizers.sentencepiece.MAX_SENTENCES", half)
    trained = [SentencePieceTokenizer.train(iter(text), 400) for _ in range(2)]
    assert trained[0].model == trained[1].model
    subwords = "".join(trained[0].subwords(range(260, 400)))
    assert any(map(str.islower, subwords)) and any(map(str.isupper, subwords))


def test_an_error_while_reading_the_sentences_is_not_replaced():
    def sentences(error):
        yield "one sentence"
        raise error

    for kind in (InputError, KeyboardInterrupt):
        with pytest.raises(kind, match=r"^the file is damaged$"):
            SentencePieceTokenizer.train(sentences(kind("the file is damaged")), 300)
    for nothing in ([], ["", " \t"]):
        with pytest.raises(
            ConfigError, match=r"vocab_size=300 can be trained: the sentences have no"
        ):
            SentencePieceTokenizer.train(nothing, 300)
    for wrong in ({"normalization": "nfkc"}, {"model_type": "word"}):
        with pytest.raises(
            ConfigError, match=f"one of these is not known.*{next(iter(wrong.values()))}"
        ):
            SentencePieceTokenizer.train(["das Haus"], 300, **wrong)


@TYPES
def test_a_vocabulary_has_as_many_subwords_as_the_text_allows(model_type):
    tokenizer = SentencePieceTokenizer.train(SENTENCES, 5000, model_type)
    assert 300 < tokenizer.vocab_size < 1000
    ids = tokenizer.tokenize(SENTENCES)
    assert ids.to_list() == tokenizer.encode(SENTENCES)
    assert tokenizer.decode(ids.to_list()) == decode_in_graph(tokenizer, ids.to_list()) == SENTENCES
    # No bytes: every character was in the training text.
    assert not any(re.match("<0x", p) for row in ids.to_list() for p in tokenizer.subwords(row))
    again = SentencePieceTokenizer.train(SENTENCES, 5000, model_type)
    assert again.model == tokenizer.model


@TYPES
def test_a_vocabulary_smaller_than_the_characters_is_an_error(model_type):
    needed = 256 + 4 + len(set("".join(SENTENCES)))  # bytes, special ids and characters
    assert SentencePieceTokenizer.train(SENTENCES, needed, model_type).vocab_size == needed
    words = f"^vocab_size={needed - 1} is too small for the characters .* of at least {needed}"
    with pytest.raises(VocabularySizeError, match=words) as caught:
        SentencePieceTokenizer.train(SENTENCES, needed - 1, model_type)
    assert caught.value.smallest == needed


def test_a_text_in_place_of_sentences_is_an_error(tokenizer):
    train = SentencePieceTokenizer.train
    for action in (
        tokenizer.encode,
        lambda text: train(text, 300),
        lambda text: train(["a"], 300, user_symbols=text),
    ):
        with pytest.raises(TypeError, match=r"expected a list of texts.*'das Haus'; give \[text\]"):
            action("das Haus")


def test_an_id_of_no_subword_is_unknown(tokenizer):
    """TensorFlow Text ends the process for it."""
    ids = tf.ragged.constant([[tokenizer.eos_id, -1, tokenizer.vocab_size]], tf.int32)
    assert tokenizer.id_to_string(ids).to_list() == [[b"</s>", b"<unk>", b"<unk>"]]


def test_long_lines_are_not_dropped_from_training():
    # By default SentencePiece drops lines of more than 4,192 bytes.
    line = " ".join(string.ascii_lowercase[i % 26] * 3 for i in range(3000))
    tokenizer = SentencePieceTokenizer.train([line, "AAA"], 300)
    assert not any(p.startswith("<0x") for p in tokenizer.subwords(tokenizer.encode([line])[0]))


def test_tokenizers_survive_a_new_seed_and_other_tokenizers_of_their_model():
    # A new seed makes TensorFlow delete its operations and their resources. The tokenizer is first
    # used during a trace, which its resource must outlive.
    tokenizer = SentencePieceTokenizer.train(["ab cd", "ef gh ab"] * 10, 270)
    tokenize = tf.function(lambda texts: tokenizer.tokenize(texts).to_tensor())
    text = tf.constant(["ab ef"])
    expected = tokenize(text).numpy()
    np.testing.assert_array_equal(tokenizer.tokenize(text).to_tensor(), expected)
    keras.utils.set_random_seed(1)
    np.testing.assert_array_equal(tokenize(text), expected)
    twin = SentencePieceTokenizer(tokenizer.model)
    np.testing.assert_array_equal(twin.tokenize(text).to_tensor(), expected)
    del twin
    keras.utils.set_random_seed(2)
    np.testing.assert_array_equal(tokenize(text), expected)
    other = SentencePieceTokenizer.train(["ab cd", "ef gh xy"] * 10, 275)
    assert other.tokenize(text).to_list() == other.encode(["ab ef"])
    assert tokenize(text).numpy().tolist() == tokenizer.encode(["ab ef"])
