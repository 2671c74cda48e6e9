"""The corpus of a run by its configuration: its parts, and the size of its vocabulary."""

import pytest

from tf_transformer.config import DataConfig
from tf_transformer.data.corpus import default_vocab_size, load_corpus, load_validation
from tf_transformer.errors import InputError

PAIRS = [("eins", "one"), ("zwei drei", "two three")]


@pytest.mark.parametrize("corpus", ["copy", "reverse"])
def test_the_validation_text_of_a_built_in_corpus(corpus):
    config = DataConfig(corpus=corpus)
    assert load_validation(config) == load_corpus(config).validation


def test_validation_files_are_read_without_the_training_files(tmp_path):
    texts = {"source": "eins\nzwei drei\n", "target": "one\ntwo three\n"}
    for side, text in texts.items():
        (tmp_path / side).write_text(text, encoding="utf-8")
    config = DataConfig(
        train_source="gone", train_target="gone",
        validation_source=str(tmp_path / "source"), validation_target=str(tmp_path / "target"),
    )  # fmt: skip
    assert list(load_validation(config)) == PAIRS
    (tmp_path / "both").write_text("eins\tone\nzwei drei\ttwo three\n", encoding="utf-8")
    config = DataConfig(corpus="tsv", train_tsv="gone", validation_tsv=str(tmp_path / "both"))
    assert list(load_validation(config)) == PAIRS


def test_a_missing_validation_file_is_named():
    config = DataConfig(corpus="tsv", train_tsv="gone", validation_tsv="gone.tsv")
    with pytest.raises(InputError, match=r"gone\.tsv"):
        load_validation(config)


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


def test_held_out_pairs_need_the_training_files():
    with pytest.raises(InputError, match=r"gone\.tsv"):
        load_validation(DataConfig(train_tsv="gone.tsv"))


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


def test_the_default_vocabulary_never_shrinks_with_more_pairs():
    sizes = [default_vocab_size("text", int(1.1**power)) for power in range(200)]
    assert sizes == sorted(sizes) and sizes[0] > 260


@pytest.mark.parametrize("corpus", ["copy", "reverse", "phrasebook"])
def test_a_built_in_corpus_has_a_vocabulary_of_its_own(corpus):
    assert default_vocab_size(corpus, 10) == default_vocab_size(corpus, 10**6)
