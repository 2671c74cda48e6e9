"""Tests of tokenizers whose ids come from a table of subwords."""

import pickle

import pytest
import sentencepiece
import tensorflow as tf
from test_tokenizer import ODD, SENTENCES, decode_in_graph

from tf_transformer.tokenizers import SentencePieceTokenizer, VocabularyTokenizer, load_tokenizer
from tf_transformer.tokenizers.sentencepiece import TokenizerError
from tf_transformer.tokenizers.vocabulary import vocabulary_model

SPECIAL = {"pad": "<pad>", "unk": "<unk>", "bos": "<pad>", "eos": "</s>"}
TAGS = [">>deu<<", ">>nld<<"]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def splitter(request, tmp_path_factory):
    """A model without bytes, as Marian trains it: its ids are of no use here."""
    prefix = tmp_path_factory.mktemp("spm") / "model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_prefix=str(prefix), vocab_size=80,
        model_type=request.param, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return prefix.with_suffix(".model").read_bytes()


def table_of(splitter, *others):
    """The model's subwords backwards, without one of them, and with some that it does not have."""
    library = sentencepiece.SentencePieceProcessor(model_proto=splitter)
    pieces = [library.id_to_piece(i) for i in range(3, library.vocab_size())]
    pieces.remove("▁the")
    return ["</s>", "<unk>", "😀", *reversed(pieces), "▁nur", *others, "<pad>"]


@pytest.fixture(scope="module")
def tokenizer(splitter):
    table = vocabulary_model(table_of(splitter, *TAGS), splitter, SPECIAL, TAGS)
    return VocabularyTokenizer(table, splitter)


def test_ids_are_the_tables(tokenizer, splitter):
    library = sentencepiece.SentencePieceProcessor(model_proto=splitter)
    table = {subword: i for i, subword in enumerate(table_of(splitter, *TAGS))}
    special = tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id, tokenizer.bos_id
    assert special == (0, 1, len(table) - 1, len(table) - 1)
    assert tokenizer.vocab_size == len(table)
    texts = [*SENTENCES[:50], *ODD]
    expected = [[table.get(p, 1) for p in library.encode(text, out_type=str)] for text in texts]
    assert tokenizer.encode(texts) == expected
    assert tokenizer.tokenize(tf.constant(texts)).to_list() == expected
    assert tokenizer.encode(["das 😀"])[0][-1] == 2, "unknown to the splitter alone"
    assert 1 in tokenizer.encode(["the"])[0], "unknown to the table alone"


def test_text_comes_back(tokenizer):
    texts = [text for text in SENTENCES[:50] if " the" not in f" {text}"]
    ids = tokenizer.encode(texts)
    assert tokenizer.decode(ids) == texts == decode_in_graph(tokenizer, ids)
    tag, unknown = tokenizer.encode([">>deu<<"])[0][0], tokenizer.unk_id
    assert decode_in_graph(tokenizer, [[tag, *ids[0], unknown]]) == [texts[0]]
    pieces = tokenizer.id_to_string(tf.ragged.constant(ids[:3], tf.int32)).to_list()
    assert [[p.decode() for p in row] for row in pieces] == [tokenizer.subwords(r) for r in ids[:3]]


@pytest.mark.parametrize(
    ("text", "tag", "rest"),
    [
        (">>deu<< das Haus", ">>deu<<", " das Haus"), (">>nld<<das", ">>nld<<", "das"),
        (">>deu<<", ">>deu<<", ""), (">>deu<<\ndas", ">>deu<<", "\ndas"),
        (">>xyz<< das", "<unk>", " das"), (">>deu<< >>nld<< das", ">>deu<<", " >>nld<< das"),
        *((text, None, text) for text in (" >>deu<< das", "das >>deu<<", ">>deu das")),
    ],
)  # fmt: skip
def test_a_tag_of_the_table_is_one_token(tokenizer, text, tag, rest):
    expected = tokenizer.encode([rest])[0]
    if tag:
        expected = [tokenizer.subwords(range(tokenizer.vocab_size)).index(tag), *expected]
    assert tokenizer.encode([text]) == [expected]
    assert tokenizer.tokenize(tf.constant([text, "das"]))[0].numpy().tolist() == expected


def test_without_tags_in_the_table_they_are_text(splitter):
    plain = VocabularyTokenizer(vocabulary_model(table_of(splitter), splitter, SPECIAL), splitter)
    ids = plain.encode([">>deu<< das"])
    assert ids == plain.tokenize(tf.constant([">>deu<< das"])).to_list()
    assert len(ids[0]) > 3


def test_a_splitter_reads_the_tags_that_are_its_symbols(tmp_path):
    """Wherever they stand; its other symbols and control symbols are what they are to it."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_prefix=str(tmp_path / "m"), vocab_size=80,
        hard_vocab_limit=False, minloglevel=2, user_defined_symbols=[">>deu<<", "<BT>"],
        control_symbols=[">>nld<<", "<ctl>"],
    )  # fmt: skip
    splitter = (tmp_path / "m.model").read_bytes()
    library = sentencepiece.SentencePieceProcessor(model_proto=splitter)
    pieces = [library.id_to_piece(i) for i in range(library.vocab_size())]
    texts = [f"{tag}{space}das" for tag in (*TAGS, ">>xyz<<", "<BT>") for space in ("", " ")]
    texts += [">>deu<< >>deu<< das", "das >>deu<< Haus", "<ctl> das", *SENTENCES[:9]]
    expected = library.encode(texts)
    for tags in ((), [">>xyz<<"]):
        subwords = [*pieces, *tags, "<pad>"]
        table = vocabulary_model(subwords, splitter, SPECIAL, tags)
        tokenizer = VocabularyTokenizer(table, splitter)
        if tags:  # it does not know one of them: others in front are cut, too, but not its symbols
            texts, expected = (rows[:2] + rows[6:] for rows in (texts, expected))
        assert tokenizer.encode(texts) == expected
        assert tokenizer.tokenize(tf.constant(texts)).to_list() == expected
        ids = [subwords.index(word) for word in (">>deu<<", ">>nld<<", "<ctl>", "▁", "<BT>")]
        assert decode_in_graph(tokenizer, [ids]) == [">>deu<< <BT>"]


def test_round_trip_through_files(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "source.model")
    SentencePieceTokenizer.train(SENTENCES, 330).save(tmp_path / "target.model")
    pickled = pickle.loads(pickle.dumps(tokenizer))  # with resources of TensorFlow by now
    for twin in (load_tokenizer(tmp_path / "source.model"), pickled):
        assert twin.model == tokenizer.model
        assert twin.encode(SENTENCES) == tokenizer.encode(SENTENCES)
    assert type(load_tokenizer(tmp_path / "target.model")) is SentencePieceTokenizer
    (tmp_path / "source.table").unlink()
    with pytest.raises(TokenizerError, match=r"source\.model: .*lacks a padding"):
        load_tokenizer(tmp_path / "source.model")


def test_the_end_of_a_text_may_be_padding(tokenizer, splitter):
    """So that a source has none."""
    special = {**SPECIAL, "eos": SPECIAL["pad"]}
    table = vocabulary_model(table_of(splitter, *TAGS), splitter, special, TAGS)
    source = VocabularyTokenizer(table, splitter)
    assert source.eos_id == source.pad_id == tokenizer.pad_id != tokenizer.eos_id
    assert source.encode(SENTENCES) == tokenizer.encode(SENTENCES)


@pytest.mark.parametrize("damaged", ["source.model", "source.table"])
def test_a_damaged_file_is_named(tokenizer, damaged, tmp_path):
    path = tmp_path / "source.model"
    tokenizer.save(path)
    (tmp_path / damaged).write_bytes(b"\x0anothing")
    with pytest.raises(TokenizerError, match=r"source\.model: .*no SentencePiece model"):
        VocabularyTokenizer.load(path)
