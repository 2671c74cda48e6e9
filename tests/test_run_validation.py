"""What a run validates and logs."""

import json
import math
import re
import shutil

import pytest
import tensorflow as tf
from small_runs import SETTINGS, same_checkpoints, train

from tf_transformer import cli
from tf_transformer.data.batching import TokenBatches
from tf_transformer.evaluation import score
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.restore import restore_model
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training import callbacks
from tf_transformer.training.losses import SmoothedCrossEntropy
from tf_transformer.training.optimizers import step_of

pytestmark = pytest.mark.usefixtures("use_small_copy_task")


def test_validation_scores_what_evaluate_translates(small_copy_task, tmp_path, monkeypatch, capfd):
    """Both score the same translations of the same model."""
    translated = []

    def spy(translations, references, *options):
        if translations is not references:
            translated.append(translations)
        return score(translations, references, *options)

    for module in ("training.callbacks", "evaluation"):
        monkeypatch.setattr(f"tf_transformer.{module}.score", spy)
    run_dir = tmp_path / "run"
    train(run_dir, *SETTINGS, "--steps=2", "--validation-steps=2")
    text = small_copy_task.validation
    for side, sentences in (("source", text.sources), ("reference", text.targets)):
        (tmp_path / side).write_text("".join(f"{s}\n" for s in sentences), encoding="utf-8")
    files = [f"--{side}={tmp_path / side}" for side in ("source", "reference")]
    assert cli.main(["evaluate", str(run_dir), *files]) == 0
    validated, evaluated = translated
    assert validated == evaluated and any(validated)
    evaluation = json.loads(capfd.readouterr().out.splitlines()[-1])
    (line,) = RunDirectory(run_dir).log()
    assert evaluation["bleu"] == line["val_bleu"]


def test_the_loss_in_the_log_is_the_mean_over_all_tokens(small_copy_task, tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, *SETTINGS, "--batch-tokens=30", "--steps=2", "--validation-steps=2")
    model, *tokenizers, _ = restore_model(RunDirectory(run_dir))
    batches, one_batch = (
        TokenBatches.from_text(small_copy_task.validation, *tokenizers, batch_tokens=size)
        for size in (30, 1000)
    )
    assert len(batches) > len(one_batch) == 1
    ((inputs, labels),) = one_batch.dataset(num_epochs=1)
    (line,) = RunDirectory(run_dir).log()
    expected = float(SmoothedCrossEntropy()(labels, model(inputs)))
    assert line["val_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_diverging_run_stops_and_names_the_step(tmp_path, capfd):
    options = ["--accumulation-steps=1", "--learning-rate=1e30", "--steps=9"]
    assert cli.main(["train", f"--run-dir={tmp_path / 'run'}", *SETTINGS, *options]) == 2
    # The first update makes the weights huge, the second batch has the loss.
    line = capfd.readouterr().err.splitlines()[-1]
    assert "step 2: the loss is no longer finite. There is no checkpoint yet." in line


def test_the_time_of_a_resumed_run_goes_on(early_stopped_run):
    for line in RunDirectory(early_stopped_run).log():
        assert 0 < line["validation_seconds"] <= 60 * line["minutes"] + 1
        assert 0 < line["validation_fraction"] < 1
    minutes = [line["minutes"] for line in RunDirectory(early_stopped_run).log()]
    assert minutes == sorted(minutes) and minutes[0] > 0
    seconds = [c.seconds for c in Checkpoints(early_stopped_run / "checkpoints").all()]
    assert seconds == sorted(seconds)
    # The log's line is written just before its checkpoint.
    assert seconds[-1] / 60 == pytest.approx(minutes[-1], abs=0.05)


def test_a_resumed_run_has_only_the_rest_of_its_minutes(early_stopped_run, tmp_path, capfd):
    run_dir = shutil.copytree(early_stopped_run, tmp_path / "run")
    states = sorted(run_dir.glob("checkpoints/*/state.json"))
    state = json.loads(states[-1].read_text("utf-8"))
    states[-1].write_text(json.dumps({**state, "seconds": 3600.0}), "utf-8")
    config = (run_dir / "config.toml").read_text("utf-8")
    assert cli.main(["train", f"--run-dir={run_dir}", "--resume", "--minutes=60"]) == 0
    assert "Nothing to do: its 60 minutes are over; give more --minutes." in capfd.readouterr().err
    assert (run_dir / "config.toml").read_text("utf-8") == config, "it says what was trained"


def test_minutes_that_end_before_the_first_update_are_an_error(tmp_path, capfd):
    """A new run makes no directory; one that lost its checkpoints keeps its own."""
    options = ["--corpus=copy", "--preset=tiny", "--num-layers=1", "--d-model=8", "--d-ff=8"]
    new = ["train", f"--run-dir={tmp_path / 'run'}", *options, "--minutes=0.001"]
    assert cli.main(new) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert "The 0.001 minutes have time for 0 updates" in last and "Nothing was written" in last
    assert not (tmp_path / "run").exists(), "the same command with more minutes trains"
    assert cli.main([*new[:-1], "--steps=1"]) == 0
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert cli.main([*new[:2], "--resume", "--minutes=0.001"]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert "nothing is trained yet" in last and "give more --minutes" in last


def test_tensorboard_has_the_metrics_of_the_log(early_stopped_run):
    found = {}
    for file in sorted((early_stopped_run / "tensorboard").iterdir()):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found[value.tag, event.step] = tf.make_ndarray(value.tensor).item()
    lines = RunDirectory(early_stopped_run).log()
    for line in lines:
        for name in ("loss", "val_loss", "val_bleu", "learning_rate"):
            assert found[name, line["step"]] == pytest.approx(line[name], rel=1e-6)
    assert {step for _, step in found} == {2, 4, 6}


def test_epochs_are_passes_of_the_text_also_where_updates_run_across_them(tmp_path, capfd):
    run_dir = tmp_path / "run"
    train(run_dir, *SETTINGS, "--batch-tokens=60", "--epochs=4", "--accumulation-steps=5")
    batches = int(re.search(r"(\d+) batches an epoch", capfd.readouterr().err)[1])
    assert batches % 5, "or every epoch ends with an update"
    assert RunDirectory(run_dir).log()[-1]["step"] == math.ceil(4 * batches / 5)


class StoppedError(Exception):
    """What ends a run before its first update."""


@pytest.mark.parametrize(("seconds", "warmup_steps"), [(0.01, 500), (0.5, 28), (1e9, None)])
def test_the_number_of_updates_is_measured(tmp_path, monkeypatch, capfd, seconds, warmup_steps):
    """Six hundred seconds, of which at least nine tenths are training; an update is two batches."""

    def stop(*_, **__):
        written.update(RunDirectory(tmp_path / "run").config().to_dict()["training"])
        raise StoppedError

    written = {}
    monkeypatch.setattr("tf_transformer.runs.train.seconds_per_batch", lambda *_: seconds)
    monkeypatch.setattr("tf_transformer.runs.train.Run.fit", stop)
    command = ["train", f"--run-dir={tmp_path / 'run'}", *SETTINGS, "--minutes=10"]
    if warmup_steps is None:
        assert cli.main(command) == 2
        assert "have time for 0 updates" in capfd.readouterr().err
        assert not (tmp_path / "run").exists()
        return
    with pytest.raises(StoppedError):
        cli.main(command)
    assert written["warmup_steps"] == pytest.approx(warmup_steps, abs=2)
    # Ten validations.
    assert written["validation_steps"] == pytest.approx(28 / seconds, rel=0.1)
    with pytest.raises(StoppedError):  # the run has no checkpoint, so the command may be repeated
        cli.main(command)


class LostError(Exception):
    """What ends the process during a validation."""


@pytest.mark.parametrize("lost", [2, 4, 6])
def test_a_lost_validation_loses_no_training_and_is_made_up_for(tmp_path, monkeypatch, lost):
    """`lost` is the step whose validation ends the process: the last one, or one before it."""
    options = [*SETTINGS, "--steps=6", "--validation-steps=2"]
    train(tmp_path / "whole", *options)
    validate = callbacks.TranslationBleu.on_epoch_end

    def fail(self, epoch, logs=None):
        if step_of(self.model) == lost:
            raise LostError
        validate(self, epoch, logs)

    with monkeypatch.context() as patch, pytest.raises(LostError):
        patch.setattr(callbacks.TranslationBleu, "on_epoch_end", fail)
        train(tmp_path / "stopped", *options)
    latest = Checkpoints(tmp_path / "stopped" / "checkpoints").latest()
    assert (latest.step, latest.metrics) == (lost, {}), "the training is saved"
    train(tmp_path / "stopped", "--resume")
    whole, stopped = (
        [
            (c.step, c.metrics["val_loss"], c.metrics["val_bleu"])
            for c in Checkpoints(tmp_path / name / "checkpoints").all()
        ]
        for name in ("whole", "stopped")
    )
    assert stopped == whole
    assert same_checkpoints(tmp_path / "stopped", tmp_path / "whole")
    logged = [line["step"] for line in RunDirectory(tmp_path / "stopped").log()]
    assert logged == [2, 4, 6]
