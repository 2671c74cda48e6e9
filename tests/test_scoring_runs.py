"""Runs without BLEU: of text alone, and of models that only score. The validation loss decides."""

import json

import pytest
import tensorflow as tf
from commands import assert_refused, log_of
from small_runs import opened, train

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.data.corpus import load_validation
from tf_transformer.evaluation import BLEU, LOSS
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.compilation import validate
from tf_transformer.runs.data import batches_of
from tf_transformer.runs.recipe import metric_of
from tf_transformer.runs.restore import best_checkpoint, restore_model
from tf_transformer.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow

SETTINGS = [
    "--vocab-size=272", "--batch-tokens=400", "--max-length=30", "--steps=8",
    "--validation-steps=2", "--learning-rate=0.01", "--warmup-steps=10", "--num-layers=1",
    "--d-model=16", "--d-ff=32", "--num-heads=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with the sentences of a copy task: for training, for validation, and as pairs."""
    folder = tmp_path_factory.mktemp("text")
    corpus = tt.copy_task(num_train=60, num_validation=8, num_test=0, max_length=6)
    for part in ("train", "validation"):
        lines = getattr(corpus, part).targets
        (folder / part).write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{part}.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def runs(texts, tmp_path_factory):
    """Returns a function: the run of an architecture on text or on pairs, and what it printed."""
    made = {}

    def run_of(architecture, kind, capfd):
        if (architecture, kind) not in made:
            path = tmp_path_factory.mktemp("runs") / "run"
            suffix = "" if kind == "text" else ".tsv"
            files = [
                f"--{option}-{kind}={texts / part}{suffix}"
                for option, part in (("train", "train"), ("validation", "validation"))
            ]
            train(path, f"--architecture={architecture}", *SETTINGS, *files)
            made[architecture, kind] = RunDirectory(path), capfd.readouterr().err
        return made[architecture, kind]

    return run_of


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("causal_lm", "text"), ("masked_lm", "text"), ("permutation_lm", "tsv"),
        ("causal_lm", "tsv"),
    ],
)  # fmt: skip
def test_the_best_checkpoint_is_that_of_the_criterion(runs, capfd, architecture, kind):
    run, printed = runs(architecture, kind, capfd)
    log, config = log_of(run.path), run.config()
    metric = metric_of(config)
    translates = (architecture, kind) == ("causal_lm", "tsv")
    assert metric == (BLEU if translates else LOSS)
    assert [("val_bleu" in line) for line in log] == [translates] * 4
    ranks = {line["step"]: metric.rank(line[metric.name]) for line in log}
    best = next(Checkpoints(run.checkpoints_path, metric).intact(pytest.fail, best_first=True))
    assert ranks[best.step] == max(ranks.values())
    assert best_checkpoint(run).path == best.path
    value = best.metrics[metric.name]
    assert f", validation {metric.label} {metric.text(value)}, in {run.path}." in printed
    if not translates:
        model, *tokenizers, _ = restore_model(run)
        batches = batches_of(load_validation(config.data), tokenizers, config.data)
        assert validate(model, config.training, batches)["loss"] == pytest.approx(value, rel=1e-5)


def test_evaluate_reports_the_perplexity_of_text_and_of_references(runs, texts, tmp_path, capfd):
    source = texts / "validation"
    both = [f"--source={source}", f"--reference={source}", "--perplexity"]
    alone = [f"--text={source}"]
    for name, kind, arguments in (("masked_lm", "text", alone), ("permutation_lm", "tsv", both)):
        run, printed = runs(name, kind, capfd)
        assert printed.splitlines()[-1].startswith(f"Next: tf-transformer evaluate {run.path} --")
        assert cli.main(["evaluate", str(run.path), *arguments]) == 0
        results = json.loads(capfd.readouterr().out.splitlines()[-1])
        best = best_checkpoint(run)
        logged = [x["val_perplexity"] for x in log_of(run.path) if x["step"] == best.step]
        assert [results["perplexity"]] == pytest.approx(logged, rel=1e-5)
        assert (results["sentences"], results["dropped"]) == (8, 0)
    # A sum of log-probabilities, as `score` has them.
    run, _ = runs("causal_lm", "tsv", capfd)
    assert cli.main(["evaluate", str(run.path), *both]) == 0
    results = json.loads(capfd.readouterr().out.splitlines()[-1])
    lines = source.read_text().splitlines()
    scores = opened(run.path)[0].score(lines, lines)
    nats = -sum(score.log_prob for score in scores) / len(scores)
    assert results["nats_per_sentence"] == pytest.approx(nats, rel=1e-4)
    assert results["tokens"] == sum(score.num_tokens for score in scores)


def test_a_model_that_only_scores_is_neither_exported_nor_asked_to_translate(runs, tmp_path, capfd):
    path = runs("masked_lm", "text", capfd)[0].path
    words = ["architecture masked_lm scores text and cannot translate", "evaluate RUN_DIR --text F"]
    for command in (["export", path, tmp_path / "saved"], ["translate", path]):
        assert_refused(command, words, capfd, tmp_path)


def test_a_language_model_completes_prompts_and_is_exported(runs, tmp_path, capfd):
    run, printed = runs("causal_lm", "text", capfd)
    assert printed.splitlines()[-1].startswith("Next: tf-transformer export ")
    (tmp_path / "prompts").write_text("ab cd. Ef gh\n\nc\n")
    assert cli.main(["translate", str(run.path), f"--input={tmp_path / 'prompts'}"]) == 0
    lines = capfd.readouterr().out.split("\n")
    assert len(lines) == 4 and lines[1] == lines[3] == ""
    saved = tmp_path / "saved"
    assert cli.main(["export", str(run.path), str(saved)]) == 0
    assert "Choosing the search" not in capfd.readouterr().err
    loaded = tt.Translator.load(saved)
    (score,) = loaded.score([""], ["a b"])
    assert score.log_prob < 0 and not score.truncated
    # A prompt of several sentences is one: both are read before it is continued.
    prompt = "ab cd. Ef gh"
    for search, found in ({"beam_size": 1}, lines[0]), ({}, loaded(prompt)):
        ((best,),) = loaded.n_best([prompt], 1, **search)
        assert best.text == found
    signature = loaded.module.signatures["serving_default"]
    assert signature(text=tf.constant([prompt]))["translation"].numpy()[0].decode() == found
