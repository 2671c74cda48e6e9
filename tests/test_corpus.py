"""The validation text of a run, without its training text."""

import pytest

from tf_transformer.config import DataConfig
from tf_transformer.data.corpus import load_corpus, load_validation
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
