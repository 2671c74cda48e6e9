"""`tf-transformer evaluate`: BLEU and chrF of a run and of its SavedModel, and errors."""

import gzip
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
        assert "robustness" not in scores
        assert "Search: greedy" in printed.out and scores["beam_size"] == 1
    assert cli.main(["evaluate", str(moved_model), *arguments, "--beam-size=3"]) == 0
    *_, search, last = capfd.readouterr().out.splitlines()
    assert search == "Search: beam of 3, length penalty 0.6"
    assert json.loads(last)["beam_size"] == 3


def write_noise_test(folder):
    """Sentences with capitals and full stops, one without; as sources and references."""
    texts = [f"Ein Hund Nummer {n} läuft schnell nach Hause." for n in range(8)] + ["oben links"]
    path = folder / "texts"
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return texts, [f"--source={path}", f"--reference={path}", "--robustness"]


def test_robustness_scores_the_text_under_noise(echo, tmp_path, capfd):
    texts, arguments = write_noise_test(tmp_path)
    printed = []
    for _ in range(2):
        assert cli.main(["evaluate", str(echo), *arguments]) == 0
        printed.append(capfd.readouterr().out.splitlines())
    # The model's translations are its sources, and the references are not changed.
    expected = {
        "text as it is": texts,
        "upper case": [text.upper() for text in texts],
        "lower case": [text.lower() for text in texts],
        "no final punctuation": [text.rstrip(".") for text in texts],
    }
    results = json.loads(printed[0][-1])
    robustness = results["robustness"]
    assert [*robustness] == [*expected, "5 % of words mistyped"]
    for name, translations in expected.items():
        scores = tt.score(translations, texts)
        assert robustness[name] == {"bleu": scores.bleu, "chrf": scores.chrf}
    assert robustness["text as it is"] == {"bleu": results["bleu"], "chrf": results["chrf"]}
    assert robustness["upper case"]["bleu"] < robustness["lower case"]["bleu"] < 100
    assert 50 < robustness["5 % of words mistyped"]["bleu"] < 100
    # Nothing but the speed differs the second time.
    assert json.loads(printed[1][-1])["robustness"] == robustness
    assert printed[0][:-1] == printed[1][:-1]
    assert printed[0][-6].split()[-4:] == ["100.00", "+0.00", "100.00", "+0.00"]


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


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_evaluate_drops_a_byte_order_mark(echo, tmp_path, capfd, compress):
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_bytes(compress(b"\xef\xbb\xbfa b c d e f\n"))
    reference.write_bytes(b"a b c d e f\n")
    given = [f"--source={source}", f"--reference={reference}"]
    assert cli.main(["evaluate", str(echo), *given]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["bleu"] == 100
