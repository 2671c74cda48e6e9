"""`tf-transformer evaluate`: BLEU and chrF of a run and of its SavedModel, and errors."""

import gzip
import json

import pytest
from commands import lines_of, run_here

import tf_transformer as tt


def evaluate(model, source, reference, *options):
    """What the command prints, and its line of JSON."""
    given = [f"--source={source}", f"--reference={reference}", *options]
    done = run_here("evaluate", model, *given)
    assert done.stderr == ""
    *lines, last = done.stdout.splitlines()
    return lines, json.loads(last)


def test_evaluate_scores_run_and_saved_model_alike(trained_run, exported_run, copy_files, tmp_path):
    sources = lines_of(copy_files / "test.source")
    translations = tt.Translator.load(exported_run[0])(sources)
    # After so short a training BLEU is 0; let half of the translations be right.
    pairs = zip(sources, translations, strict=True)
    references = [t if i % 2 else s for i, (s, t) in enumerate(pairs)]
    reference = tmp_path / "reference"
    reference.write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    expected = tt.corpus_score(translations, references)
    assert 0 < expected.chrf < 100
    for model in (trained_run[0], exported_run[0]):
        lines, scores = evaluate(model, copy_files / "test.source", reference)
        assert lines[0] == f"BLEU {expected.bleu:.2f}   {expected.signature}"
        assert lines[-1] == "Search: greedy" and scores["beam_size"] == 1
        assert (scores["bleu"], scores["chrf"]) == (expected.bleu, expected.chrf)
        assert scores["signature"] == expected.signature
        assert scores["sentences"] == 12 and scores["tokens_per_second"] > 0
        assert "robustness" not in scores
    lines, scores = evaluate(
        exported_run[0], copy_files / "test.source", reference, "--beam-size=3"
    )
    assert lines[-1] == "Search: beam of 3, length penalty 0.6"
    assert scores["beam_size"] == 3


def test_robustness_scores_the_text_under_noise(echo, tmp_path):
    # The model's translations are its sources, and the references are not changed.
    texts = [f"Ein Hund Nummer {n} läuft schnell nach Hause." for n in range(8)] + ["oben links"]
    path = tmp_path / "texts"
    content = "".join(f"{text}\n" for text in texts).encode()
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + content))  # a byte order mark
    lines, results = evaluate(echo, path, path, "--robustness")
    expected = {
        "text as it is": texts,
        "upper case": [text.upper() for text in texts],
        "lower case": [text.lower() for text in texts],
        "no final punctuation": [text.rstrip(".") for text in texts],
    }
    robustness = results["robustness"]
    same = ["decomposed accents (NFD)", "soft hyphens", "zero-width spaces"]
    assert [*robustness] == [*expected, "5 % of words mistyped", *same]
    for name, translations in expected.items():
        scores = tt.corpus_score(translations, texts)
        assert robustness[name] == {"bleu": scores.bleu, "chrf": scores.chrf}
    assert robustness["upper case"]["bleu"] < robustness["lower case"]["bleu"] < 100
    assert 50 < robustness["5 % of words mistyped"]["bleu"] < 100
    assert [robustness[name]["bleu"] for name in same] == [pytest.approx(100)] * 3
    assert lines[-8].split()[-4:] == ["100.00", "+0.00", "100.00", "+0.00"]


def test_what_was_not_translated_is_said(echo, tmp_path):
    path = tmp_path / "texts"
    path.write_text(f"a b\n{'a ' * 200}\n", encoding="utf-8")
    done = run_here("evaluate", echo, f"--source={path}", f"--reference={path}")
    assert "1 source(s) are longer than the model's max_length" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["sources_truncated"] == 1


@pytest.mark.slow
def test_two_models_are_compared_on_every_test_set(echo, exported_run, copy_files):
    sources, references = copy_files / "test.source", copy_files / "validation.source"
    options = [
        f"--source={sources}", f"--reference={sources}", f"--source={references}",
        f"--reference={sources}", "--beam-size=1",
    ]  # fmt: skip
    # The echo's translations of the first set are its references.
    done = run_here("evaluate", echo, "--compare", exported_run[0], *options)
    *lines, last = done.stdout.splitlines()
    results = json.loads(last)
    assert (results["first"], results["second"]) == (str(exported_run[0]), str(echo))
    translate, texts = tt.Translator.load(exported_run[0]), lines_of(sources)
    for path, row in zip((sources, references), results["sets"], strict=True):
        assert row["source"] == str(path)
        translations = [translate(lines_of(path), beam_size=1), lines_of(path)]
        for metric, name in zip(row["metrics"], ("bleu", "chrf"), strict=True):
            scores = [getattr(tt.corpus_score(found, texts), name) for found in translations]
            assert [metric["first"], metric["second"]] == scores
    bleu, chrf = results["sets"][0]["metrics"]
    assert bleu["second"] == chrf["second"] == 100 and chrf["p_value"] < 0.01
    change = f"{bleu['second'] - bleu['first']:+.2f}"
    assert lines[3].split()[-2] == change and "BLEU" in lines[3]
