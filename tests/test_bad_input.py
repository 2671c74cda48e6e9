"""Unusable files and settings of training: each gets one line that names it, and makes no run."""

import pytest
from commands import SMALL, assert_one_line, assert_refused, files

from tf_transformer import cli


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["--train-source, --train-target", "--corpus phrasebook"]),
        (["--corpus=copy", "--steps=5", "--minutes=1"], ["--steps and --minutes each"]),
        (["--corpus=copy", "--steps=many"], ["steps", "'many'"]),
        (["--corpus=tfds:nothing_like_it"], ["nothing_like_it"]),
        (["--corpus=copy", "--config=none.toml"], ["none.toml", "No such file"]),
        (["--corpus=copy", "--config={}/run.toml", "--steps=3"],
         [r"run.toml: \[model\] 'num_layer'", "'num_layers'"]),
        (["--train-tsv={}/one_tab"], ["one_tab, line 2: 0 tabs"]),
        (["--train-source={}/two", "--train-target={}/latin1"], ["latin1, line 2: not valid"]),
        (["--train-source={}/folder", "--train-target={}/two"], ["folder: is a directory"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_trained_on_is_named(bad_files, capfd, options, words):
    (bad_files / "run.toml").write_text("[model]\nnum_layer = 2\n", encoding="utf-8")
    options = [option.format(bad_files) for option in options]
    arguments = ["train", f"--run-dir={bad_files / 'run'}", *options]
    assert_refused(arguments, words, capfd, bad_files)


# Found only after the text is read; the last line is the error.
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vocab-size=261"], [r"vocab_size=261", "too small", r"at least \d+"]),
        (["--vocab-size=280", "--max-length=2"], ["max_length"]),
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
