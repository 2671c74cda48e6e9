"""What makes a run better than its steps: moving averages, patience; and what is seen of it."""

import importlib.util
import json
import shutil

import h5py
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

from tf_transformer import cli
from tf_transformer.data.batching import TokenBatches
from tf_transformer.evaluation import score
from tf_transformer.training import stopping
from tf_transformer.training.checkpoints import Checkpoints
from tf_transformer.training.losses import SmoothedCrossEntropy
from tf_transformer.training.restore import restore_model
from tf_transformer.training.run_directory import RunDirectory

SETTINGS = [
    "--corpus=copy", "--num-layers=1", "--d-model=16", "--num-heads=2", "--d-ff=32",
    "--vocab-size=272", "--batch-tokens=400", "--max-length=30", "--accumulation-steps=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def copy_task():
    """The copy task, smaller than the command line has it."""
    from tf_transformer import copy_task

    return copy_task(num_train=60, num_validation=4, num_test=0, max_length=6)


@pytest.fixture(autouse=True)
def small_corpus(copy_task, monkeypatch):
    monkeypatch.setattr("tf_transformer.training.run_data.load_corpus", lambda _: copy_task)


def train(run_dir, *options):
    assert cli.main(["train", f"--run-dir={run_dir}", *options]) == 0


def datasets(run_dir):
    """The datasets of the newest checkpoint's file, by their names."""
    found = {}

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item)

    latest = Checkpoints(run_dir / "checkpoints").latest()
    with h5py.File(latest.path / "model.weights.h5") as file:
        file.visititems(add)
    return found


def weights_in(run_dir):
    return [v.numpy() for v in restore_model(RunDirectory(run_dir)).model.trainable_variables]


@pytest.fixture
def deterministic():
    """Lets a run ask for determinism, which is the whole process's, and ends it."""
    yield "--deterministic"
    disable_op_determinism()


def test_a_run_keeps_the_averages_and_goes_on_from_the_weights(
    tmp_path, monkeypatch, deterministic
):
    """The same run three times: plain, averaged, and averaged with a stop within a period."""
    # Without determinism the noise in gradients that are zero, as of a key's bias, would tell.
    settings = [*SETTINGS, "--warmup-steps=10", "--validation-steps=4", deterministic]
    plain, whole, stopped = (tmp_path / name for name in ("plain", "whole", "stopped"))
    keep = ["--checkpoint-steps=1", "--keep-checkpoints=20"]
    train(plain, *settings, *keep, "--steps=6")
    train(whole, *settings, "--ema-momentum=0.3", "--steps=6")
    train(stopped, *settings, "--ema-momentum=0.3", "--checkpoint-steps=3", "--steps=3")
    train(stopped, "--resume", "--steps=6")

    one, other = datasets(whole), datasets(stopped)
    assert one.keys() == other.keys()
    assert not [name for name in one if one[name].tobytes() != other[name].tobytes()]

    average = 0.0
    model = restore_model(RunDirectory(plain)).model
    for updates, checkpoint in enumerate(Checkpoints(plain / "checkpoints").all()):
        checkpoint.restore(model)
        kept = min(0.3, updates / (updates + 10))
        weights = np.concatenate([v.numpy().ravel() for v in model.trainable_variables])
        average = kept * average + (1 - kept) * weights.astype("float64")
    # What evaluate and export read is the best checkpoint; the last is to be it here.
    monkeypatch.setattr(Checkpoints, "best", Checkpoints.latest)
    found = np.concatenate([w.ravel() for w in weights_in(whole)])
    assert abs(average - weights).max() > 1e-3
    np.testing.assert_allclose(found, average, atol=1e-6)


def test_validation_scores_what_evaluate_translates(copy_task, tmp_path, monkeypatch, capfd):
    """The same translations, of a model that has learnt nothing yet, and so the same score."""
    translated = []

    def spy(translations, references):
        translated.append(translations)
        return score(translations, references)

    for module in ("training.callbacks", "evaluation"):
        monkeypatch.setattr(f"tf_transformer.{module}.score", spy)
    run_dir = tmp_path / "run"
    train(run_dir, *SETTINGS, "--steps=2", "--validation-steps=2")
    text = copy_task.validation
    for side, sentences in (("source", text.sources), ("reference", text.targets)):
        (tmp_path / side).write_text("".join(f"{s}\n" for s in sentences), encoding="utf-8")
    files = [f"--{side}={tmp_path / side}" for side in ("source", "reference")]
    assert cli.main(["evaluate", str(run_dir), *files]) == 0
    validated, evaluated = translated
    assert validated == evaluated and any(validated)
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    (line,) = RunDirectory(run_dir).log()
    assert figures["bleu"] == line["val_bleu"]


def test_the_loss_in_the_log_is_the_mean_over_all_tokens(copy_task, tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, *SETTINGS, "--batch-tokens=30", "--steps=2", "--validation-steps=2")
    model, *tokenizers, _ = restore_model(RunDirectory(run_dir))
    batches, whole = (
        TokenBatches.from_text(copy_task.validation, *tokenizers, batch_tokens=size)
        for size in (30, 1000)
    )
    assert len(batches) > len(whole) == 1
    ((inputs, labels),) = whole.dataset(num_epochs=1)
    (line,) = RunDirectory(run_dir).log()
    expected = float(SmoothedCrossEntropy()(labels, model(inputs)))
    assert line["val_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_run_that_diverges_ends_and_names_the_step(tmp_path, capfd):
    options = ["--accumulation-steps=1", "--learning-rate-factor=1e30", "--steps=9"]
    assert cli.main(["train", f"--run-dir={tmp_path / 'run'}", *SETTINGS, *options]) == 2
    # The first update ruins the weights, the second batch shows it.
    line = capfd.readouterr().err.splitlines()[-1]
    assert "step 2: the loss is no longer finite. There is no checkpoint yet." in line


def test_patience_counts_from_the_best():
    def validations_until_over(patience, *figures):
        model = type("Model", (), {"stop_training": False})()
        callback = stopping.EarlyStopping(patience)
        callback.set_model(model)
        for number, figure in enumerate(figures, 1):
            callback.on_epoch_end(0, {"val_bleu": figure})
            assert model.stop_training == callback.is_due
            if model.stop_training:
                return number
        return None

    assert validations_until_over(1, 1.0, 2.0, 2.0, 3.0) == 3
    assert validations_until_over(2, 5.0, 1.0, 6.0, 2.0, 3.0, 4.0) == 5
    assert validations_until_over(3, 5.0, 1.0, 2.0) is None
    assert stopping.EarlyStopping(2, earlier=[5.0, 1.0, 2.0]).is_due
    assert not stopping.EarlyStopping(2, earlier=[5.0, 1.0, 5.5]).is_due


@pytest.fixture(scope="module")
def impatient(copy_task, tmp_path_factory):
    """A run that learns nothing, stopped by a length, gone on with, and stopped by patience."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tf_transformer.training.run_data.load_corpus", lambda _: copy_task)
        train(
            run_dir, *SETTINGS, "--learning-rate-factor=1e-9", "--validation-steps=2",
            "--patience=2", "--tensorboard", "--steps=4",
        )  # fmt: skip
        train(run_dir, "--resume", "--steps=1000")
    return run_dir


def test_patience_ends_a_run_and_survives_resuming(impatient, capfd):
    assert [line["step"] for line in RunDirectory(impatient).log()] == [2, 4, 6]
    before = {p: p.stat().st_mtime_ns for p in impatient.rglob("*")}
    train(impatient, "--resume", "--steps=1000")
    assert "Nothing to do: the last 2 validations up to step 6" in capfd.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in impatient.rglob("*")} == before


def test_the_log_says_how_long_validations_took(impatient):
    for line in RunDirectory(impatient).log():
        assert 0 < line["validation_seconds"] <= 60 * line["minutes"] + 1
        assert 0 < line["validation_fraction"] < 1


def test_tensorboard_has_the_figures_of_the_log(impatient):
    found = {}
    for file in sorted((impatient / "tensorboard").iterdir()):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found[value.tag, event.step] = tf.make_ndarray(value.tensor).item()
    lines = RunDirectory(impatient).log()
    for line in lines:
        for name in ("loss", "val_loss", "val_bleu", "learning_rate"):
            assert found[name, line["step"]] == pytest.approx(line[name], rel=1e-6)
    assert {step for _, step in found} == {2, 4, 6}


# --- Curves ---------------------------------------------------------------------------------


def test_plot_draws_the_curves_of_runs(impatient, tmp_path, capfd):
    other = shutil.copytree(impatient, tmp_path / "other")
    output = tmp_path / "new" / "curves.png"
    assert cli.main(["plot", str(impatient), str(other), f"--output={output}"]) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
    assert capfd.readouterr() == (f"{output}\n", "")


@pytest.fixture
def run_dir(tmp_path):
    """A run of which there is nothing but a log."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").touch()
    (run / "log.jsonl").write_text('{"step": 2, "loss": 1.0}\n', encoding="utf-8")
    return run


def refusal(capfd, *arguments):
    assert cli.main(["plot", *map(str, arguments)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    return line


def test_plot_leaves_out_a_run_without_a_log(run_dir, tmp_path):
    without = shutil.copytree(run_dir, tmp_path / "mean")
    (without / "log.jsonl").unlink()
    output = tmp_path / "curves.svg"
    assert cli.main(["plot", str(run_dir), str(without), f"--output={output}"]) == 0
    assert output.stat().st_size > 1000


def test_plot_says_what_it_cannot_draw(run_dir, tmp_path, capfd, monkeypatch):
    assert "holds no run" in refusal(capfd, tmp_path / "nothing")
    with (run_dir / "log.jsonl").open("a") as file:
        file.write("[]\n")
    assert f"{run_dir / 'log.jsonl'}: line 2 is no line of metrics" in refusal(capfd, run_dir)
    (run_dir / "log.jsonl").unlink()
    assert "no run has a validation in its log" in refusal(capfd, run_dir)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install matplotlib" in refusal(capfd, run_dir)


def test_plot_draws_each_figure_over_the_steps(run_dir):
    from tf_transformer.visualization.history import plot_history

    lines = [{"step": s, "loss": 9.0 - s, "val_loss": 9.5 - s, "val_perplexity": 2.0 * s,
              "val_bleu": 1.0 * s, "learning_rate": 0.1 * s} for s in (2, 4)]  # fmt: skip
    (run_dir / "log.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines), "utf-8")
    drawn = {}
    for axes in plot_history([("one", RunDirectory(run_dir).log()), ("two", lines[:1])]).axes:
        drawn[axes.get_title(loc="left")] = [
            (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()
        ]
    assert drawn == {
        "Loss": [([2, 4], [7.0, 5.0]), ([2, 4], [7.5, 5.5]), ([2], [7.0]), ([2], [7.5])],
        "Validation BLEU": [([2, 4], [2.0, 4.0]), ([2], [2.0])],
        "Validation perplexity": [([2, 4], [4.0, 8.0]), ([2], [4.0])],
        "Learning rate": [([2, 4], [0.2, 0.4]), ([2], [0.2])],
    }
