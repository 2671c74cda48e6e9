"""Tests of the corpus of a run: its files, built-in text and the size of its vocabulary."""

import gzip

import pytest

from tf_transformer.config import DataConfig
from tf_transformer.data.corpus import default_vocab_size, load_corpus, load_validation
from tf_transformer.data.text import TextFiles
from tf_transformer.errors import InputError

PAIRS = [("eins", "one"), ("zwei drei", "two three")]


@pytest.mark.parametrize("corpus", ["copy", "reverse", "phrasebook"])
def test_a_built_in_corpus_has_validation_text_and_a_vocabulary_of_its_own(corpus):
    config = DataConfig(corpus=corpus)
    assert load_validation(config) == load_corpus(config).validation
    assert default_vocab_size(corpus, 10) == default_vocab_size(corpus, 10**6)


def test_validation_files_are_read_without_the_training_files(tmp_path):
    for side, text in (("source", "eins\nzwei drei\n"), ("target", "one\ntwo three\n")):
        (tmp_path / side).write_text(text, encoding="utf-8")
    config = DataConfig(
        train_source="gone", train_target="gone",
        validation_source=str(tmp_path / "source"), validation_target=str(tmp_path / "target"),
    )  # fmt: skip
    assert list(load_validation(config)) == PAIRS
    (tmp_path / "both").write_text("eins\tone\nzwei drei\ttwo three\n", encoding="utf-8")
    config = DataConfig(corpus="tsv", train_tsv="gone", validation_tsv=str(tmp_path / "both"))
    assert list(load_validation(config)) == PAIRS


@pytest.mark.parametrize("validation", [{}, {"validation_tsv": "gone.tsv"}])
def test_a_missing_file_is_named(validation):
    with pytest.raises(InputError, match=r"gone\.tsv: no such file"):
        load_validation(DataConfig(corpus="tsv", train_tsv="gone.tsv", **validation))


def test_without_validation_files_a_part_of_the_training_text_is_held_out(tmp_path):
    pairs = [(f"Satz {i}", f"sentence {i}") for i in range(100)]
    texts = {
        "source": "".join(f"{source}\n" for source, _ in pairs),
        "target": "".join(f"{target}\n" for _, target in pairs),
        "both": "".join(f"{source}\t{target}\n" for source, target in pairs),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    text, tsv = (
        DataConfig(train_source=str(tmp_path / "source"), train_target=str(tmp_path / "target")),
        DataConfig(train_tsv=str(tmp_path / "both")),
    )
    for config, name in ((text, "text"), (tsv, "tsv")):
        corpus = load_corpus(config)
        assert (corpus.name, len(corpus.train), len(corpus.validation)) == (name, 90, 10)
        assert sorted([*corpus.train, *corpus.validation]) == sorted(pairs)
        assert load_validation(config) == corpus.validation
    assert load_corpus(text).validation == load_corpus(tsv).validation


def test_text_alone_has_empty_sources(tmp_path):
    (tmp_path / "a.1").write_bytes(b"eins\n\n \nzwei\tdrei")
    (tmp_path / "a.2").write_bytes(gzip.compress(b"vier\r\n"))
    text = TextFiles(None, tmp_path / "a.*")
    assert list(text) == list(text) == [("", "eins"), ("", "zwei\tdrei"), ("", "vier")]
    assert (len(text), text.num_blank) == (3, 2)
    (tmp_path / "v").write_text("ein Satz\n\nnoch einer\n", encoding="utf-8")
    config = DataConfig(train_text=f"{tmp_path}/a.*", validation_text=str(tmp_path / "v"))
    assert config.corpus == "monolingual"
    assert list(load_validation(config)) == [("", "ein Satz"), ("", "noch einer")]
    assert load_validation(config).num_blank == 1
    corpus = load_corpus(config)
    assert corpus.unit == "sentence"
    assert corpus.notes == (f"2 files: {tmp_path}/a.1, …, {tmp_path}/a.2.",)


@pytest.mark.parametrize(
    ("num_pairs", "least", "most"),
    [
        (45, 300, 500), (450, 500, 1_000), (3_000, 1_500, 3_000), (28_000, 4_000, 8_000),
        (200_000, 8_000, 8_000), (2_000_000, 16_000, 16_000), (10**8, 32_000, 32_000),
    ],
)  # fmt: skip
def test_the_default_vocabulary_suits_the_number_of_pairs(num_pairs, least, most):
    for corpus in ("text", "tsv", "tfds:ted_hrlr_translate/pt_to_en"):
        assert least <= default_vocab_size(corpus, num_pairs) <= most
