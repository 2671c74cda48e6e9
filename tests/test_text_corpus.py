"""Text without translations: its files and parts, and what a run makes of it."""

import re

import numpy as np
import pytest
import tensorflow as tf
from configurations import refusal

from tf_transformer.config import RunConfig
from tf_transformer.data.corpus import load_corpus
from tf_transformer.runs.data import prepare_data
from tf_transformer.runs.recipe import Facts, choose, explain
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training.distribution import Workers


@pytest.fixture
def text_file(tmp_path):
    """A file of 60 sentences, two of which are the same, and a blank line."""
    path = tmp_path / "text"
    lines = [f"Der Hund {i * i} läuft nach Hause." for i in range(59)]
    path.write_text("".join(f"{line}\n" for line in [*lines, lines[0], " "]), encoding="utf-8")
    return path


def config_of(path, **settings):
    return RunConfig.from_dict(
        {
            "data": {"train_text": str(path)},
            "model": {"architecture": "causal_lm"},
            **settings,
        }
    )


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (
            {"model": {}},
            "architecture transformer.* --architecture: causal_lm, permutation_lm, masked_lm",
        ),
        ({"tokenizer": {"joint": False}}, "--no-joint needs text of two sides"),
        ({"data": {"train_text": "x", "source_noise": 0.1}}, "source_noise changes sources"),
        ({"data": {"train_text": "x", "train_tsv": "y"}}, "--train-text has no use with"),
        ({"data": {"validation_text": "x"}}, "missing --train-text. "),
    ],
)
def test_what_cannot_be_learned_from_text_is_refused_at_once(tables, words):
    assert re.search(words, refusal(config_of, "x", **tables))


def test_a_configuration_of_text_is_written_and_read(text_file):
    config = config_of(text_file)
    assert RunConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["data"]["corpus"] == "monolingual"


def test_the_recipe_finds_no_source_to_change(text_file):
    config = config_of(text_file)
    facts = Facts.of(config, load_corpus(config.data), 1, 0)
    chosen = {name: value for name, (value, _) in choose(config, facts).items()}
    assert (chosen["data.source_noise"], chosen["data.fold_capitals"]) == (0.0, False)
    assert explain(config, facts).startswith("For 54 sentences, 1 core would be chosen:")


@pytest.mark.parametrize("cached", [False, True])
def test_the_data_of_a_run(text_file, tmp_path, capfd, cached):
    data = {"train_text": str(text_file)}
    if cached:
        data["data_cache"] = str(tmp_path / "cache")
    config = config_of(text_file, data=data)
    workers = Workers(tf.distribute.get_strategy())
    config, found = prepare_data(config, RunDirectory(tmp_path / "run"), workers, resume=False)
    printed = capfd.readouterr().err.splitlines()
    assert printed[0] == (
        "Held out 6 of 60 sentences for validation; give --validation-text to choose them."
    )
    assert printed[1] == "Training a tokenizer of 400 subwords on 54 sentences."
    assert found.description.startswith(
        "54 training sentences of monolingual; dropped: 1 blank, 0 too long."
    )
    tokenizer, of_target = found.tokenizers
    assert tokenizer.model == of_target.model
    sentences = [target for _, target in found.corpus.train]
    for epoch in (0, 1):
        seen = []
        for indices in found.batches.batch_indices(epoch):
            inputs, labels = found.batches.batch(indices, epoch)
            np.testing.assert_array_equal(inputs["source_ids"], [[tokenizer.eos_id]] * len(indices))
            assert inputs["source_ids"].dtype == np.int32
            special = (tokenizer.pad_id, tokenizer.eos_id)
            seen += tokenizer.decode(
                [[i for i in row if i not in special] for row in labels.tolist()]
            )
        assert sorted(seen) == sorted(sentences)
    if cached:
        (folder,) = (tmp_path / "cache").iterdir()
        before = folder.stat().st_mtime_ns
        prepare_data(config, RunDirectory(tmp_path / "run"), workers, resume=False)
        assert folder.stat().st_mtime_ns == before
