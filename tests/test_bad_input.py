"""Unusable files and settings of training: each gets one line that names it."""

import pytest
from commands import SMALL, assert_one_line, assert_refused, files

from tf_transformer import cli


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two", [r"two has 2 ", r"validation\.target has 12\b"]),
        ("empty", ["empty: the file is empty"]),
        ("missing", ["missing: no such file"]),
        ("latin1", ["latin1, line 2: not valid UTF-8"]),
        ("torn.gz", ["torn.gz: damaged"]),
        ("folder", ["folder: is a directory"]),
    ],
)
def test_a_bad_text_file_is_named(copy_files, bad_files, capfd, name, words):
    given = files(copy_files, validation_source=bad_files / name)
    arguments = ["train", f"--run-dir={bad_files / 'run'}", *given, *SMALL]
    assert_refused(arguments, words, capfd, bad_files)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["--train-source, --train-target", "--corpus phrasebook"]),
        (["--corpus=phrasbook"], ["'phrasbook'", "'phrasebook'"]),
        (["--corpus=copy", "--steps=5", "--minutes=1"], ["--steps and --minutes each"]),
        (["--corpus=copy", "--steps=many"], ["steps", "'many'"]),
        (["--corpus=copy", "--num-units=5"], ["num_units", "cho, bahdanau"]),
        (["--corpus=tfds:nothing_like_it"], ["nothing_like_it"]),
        (["--corpus=copy", "--config=none.toml"], ["none.toml", "No such file"]),
    ],
)
def test_a_bad_setting_is_named(tmp_path, capfd, options, words):
    arguments = ["train", f"--run-dir={tmp_path / 'run'}", *options]
    assert_refused(arguments, words, capfd, tmp_path)


# Found only after the text is read; the last line is the error.
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vocab-size=261"], [r"vocab_size=261", "too small", r"at least \d+"]),
        (["--vocab-size=280", "--max-length=2"], ["max_length"]),
        (["--vocab-size=280", "--no-joint", "--tie-embeddings"], ["tie_embeddings"]),
    ],
)
def test_a_setting_that_does_not_fit_the_text_is_named(copy_files, tmp_path, capfd, options, words):
    small = [option for option in SMALL if not option.startswith("--vocab")]
    given = [*files(copy_files), *small, "--steps=1", *options]
    assert cli.main(["train", f"--run-dir={tmp_path / 'run'}", *given]) == 2
    *before, last = capfd.readouterr().err.splitlines()
    assert_one_line(last, *words)
    assert all(line.startswith("Training a tokenizer") for line in before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ja\tyes\nno tab\n", ["all.tsv, line 2: 0 tabs"]),
        ("ja\tyes\n", ["all.tsv: no line of 1 is rare enough", "files for validation"]),
        ("ja\tyes\nja\tsure\nja\tyeah\n", ["all.tsv: no line of 3 is rare enough"]),
    ],
)
def test_an_unusable_tsv_file_is_named(tmp_path, capfd, text, words):
    (tmp_path / "all.tsv").write_text(text, encoding="utf-8")
    arguments = ["train", f"--run-dir={tmp_path / 'run'}", f"--train-tsv={tmp_path / 'all.tsv'}"]
    assert_refused(arguments, words, capfd, tmp_path)


@pytest.mark.parametrize("option", [[], ["--max-length=9"], ["--steps=3"]])
@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[model]\nnum_layer = 2\n", [r"run.toml: \[model\] 'num_layer'", "'num_layers'"]),
        ("[modle]\n", ["run.toml", "'modle'", "'model'"]),
        ("training = 3\n", ["run.toml", r"write \[training\]"]),
    ],
)
def test_a_bad_file_of_settings_is_named(tmp_path, capfd, toml, words, option):
    config = tmp_path / "run.toml"
    config.write_text(toml, encoding="utf-8")
    arguments = ["train", "--corpus=copy", f"--config={config}", f"--run-dir={tmp_path / 'run'}"]
    assert_refused([*arguments, *option], words, capfd, tmp_path)
