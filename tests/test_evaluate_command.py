"""`tf-transformer evaluate`: BLEU and chrF of a run and of its SavedModel, and errors."""

import json

import pytest
from commands import assert_refused, lines_of

import tf_transformer as tt
from tf_transformer import cli


def test_evaluate_scores_run_and_saved_model_alike(
    trained_run, moved_model, copy_files, tmp_path, capfd
):
    sources = lines_of(copy_files / "test.source")
    translations = tt.Translator.load(moved_model)(sources)
    # After so short a training BLEU is 0; let half of the translations be right.
    pairs = zip(sources, translations, strict=True)
    references = [t if i % 2 else s for i, (s, t) in enumerate(pairs)]
    reference = tmp_path / "reference"
    reference.write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    expected = tt.score(translations, references)
    assert 0 < expected.chrf < 100
    for model in (trained_run[0], moved_model):
        arguments = [f"--source={copy_files / 'test.source'}", f"--reference={reference}"]
        assert cli.main(["evaluate", str(model), *arguments]) == 0
        printed = capfd.readouterr()
        assert printed.err == ""
        first, *_, last = printed.out.splitlines()
        assert f"BLEU {expected.bleu:.2f}" in first
        assert expected.signature in first
        scores = json.loads(last)
        assert (scores["bleu"], scores["chrf"]) == (expected.bleu, expected.chrf)
        assert scores["signature"] == expected.signature
        assert scores["sentences"] == 12
        assert scores["tokens_per_second"] > 0


def test_evaluation_files_of_different_length_are_named(moved_model, bad_files, capfd):
    given = [f"--source={bad_files / 'two'}", f"--reference={bad_files / 'three'}"]
    words = [r"two has 2 lines", r"three has 3\b"]
    assert_refused(["evaluate", moved_model, *given], words, capfd, bad_files)


@pytest.mark.parametrize(
    ("name", "words"), [("missing", ["no such file"]), ("latin1", ["latin1, line 2"])]
)
def test_a_bad_evaluation_file_is_named(moved_model, bad_files, capfd, name, words):
    given = [f"--source={bad_files / 'three'}", f"--reference={bad_files / name}"]
    assert_refused(["evaluate", moved_model, *given], words, capfd, bad_files)
