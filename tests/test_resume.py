"""A run killed at any moment and resumed is, bit for bit, the run that was never killed."""

import os
import random
import shutil
import signal
import time

import pytest
from commands import files, log_of
from small_runs import same_checkpoints
from worker_processes import TRAIN, copy_task_options, end, newest_step, start, wait_for

from tf_transformer import cli
from tf_transformer.runs import callbacks
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.run_directory import RunDirectory, RunError

STEPS = 40


@pytest.fixture(scope="module")
def options(tmp_path_factory, write_copy_task):
    folder = tmp_path_factory.mktemp("data")
    write_copy_task(folder)
    return copy_task_options(
        folder, "--dropout-rate=0.2", f"--steps={STEPS}", "--validation-steps=16",
        "--checkpoint-steps=3", "--accumulation-steps=2", "--warmup-steps=10", "--clip-norm=1",
    )  # fmt: skip


@pytest.fixture(
    scope="module", params=[(), ("--row-length=32", "--xla", "--precision=mixed_bfloat16")]
)
def runs(options, tmp_path_factory, request):
    """A run, the same run interrupted three times, and the checkpoint steps at these times."""
    folder = tmp_path_factory.mktemp("runs")
    whole, stopped = folder / "whole", folder / "stopped"

    def begin(run_dir, *options):
        return start(*TRAIN, f"--run-dir={run_dir}", *options)

    options = [*options, *request.param, "--deterministic"]
    both = [begin(run_dir, *options) for run_dir in (whole, stopped)]
    reached = []

    # At a random moment after the first checkpoint.
    wait_for(lambda: newest_step(stopped), both[1])
    time.sleep(random.uniform(0, 0.2))
    both[1].send_signal(signal.SIGKILL)
    end(both[1], -signal.SIGKILL)
    reached.append(newest_step(stopped))

    # In the middle of a save.
    process = begin(stopped, "--resume")
    writing = stopped / "checkpoints"
    for leftover in writing.glob(".writing-*"):
        shutil.rmtree(leftover)
    wait_for(lambda: any(writing.glob(".writing-*")), process)
    process.send_signal(signal.SIGKILL)
    end(process, -signal.SIGKILL)
    reached.append(newest_step(stopped))

    # SIGTERM, as from a preempted machine.
    process = begin(stopped, "--resume")
    wait_for(lambda: newest_step(stopped) > reached[-1], process)
    process.send_signal(signal.SIGTERM)
    _, printed = end(process, 128 + signal.SIGTERM)
    assert "Stopped at step" in printed
    for noise in ("Warning", "WARNING", "oneDNN", "cuda", "Traceback", "Next:"):
        assert noise not in printed
    reached.append(newest_step(stopped))

    end(begin(stopped, "--resume"), 0)
    end(both[0], 0)
    return whole, stopped, reached


@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_with_the_same_weights_and_metrics(runs):
    whole, stopped, reached = runs
    assert 0 < reached[0] <= reached[1] < reached[2] < STEPS, "interrupted, each time later"
    one, other = (Checkpoints(run_dir / "checkpoints").latest() for run_dir in (whole, stopped))
    assert (one.step, one.batches_seen) == (other.step, other.batches_seen) == (STEPS, 2 * STEPS)
    assert one.seeds == other.seeds
    assert same_checkpoints(whole, stopped)
    of_whole, of_stopped = (
        [(line["step"], line["val_loss"], line["val_bleu"]) for line in log_of(run_dir)]
        for run_dir in (whole, stopped)
    )
    assert of_stopped == of_whole
    assert [step for step, *_ in of_whole] == [16, 32, STEPS]


# No checkpoint is due at step 5, and a validation at step 16.
@pytest.mark.parametrize(
    ("number", "step", "is_validated"),
    [
        (signal.SIGINT, 5, True),
        pytest.param(signal.SIGHUP, 5, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 5, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 16, True, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_with_a_checkpoint_and_sigterm_validates_only_if_it_is_due(
    options, tmp_path, monkeypatch, capfd, number, step, is_validated
):
    before = signal.getsignal(number)

    class Progress(callbacks.Progress):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) == step:
                signal.raise_signal(number)

    monkeypatch.setattr("tf_transformer.runs.training_run.Progress", Progress)
    run_dir = tmp_path / "run"
    assert cli.main(["train", f"--run-dir={run_dir}", *options]) == 128 + number
    latest = Checkpoints(run_dir / "checkpoints").latest()
    assert (latest.step, latest.batches_seen) == (step, 2 * step)
    assert bool(latest.metrics) == is_validated
    assert signal.getsignal(number) is before
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == f"To go on: tf-transformer train --run-dir {run_dir} --resume"


@pytest.mark.slow
def test_text_that_changes_ends_a_run_with_a_checkpoint_and_one_line(
    options, copy_files, tmp_path, monkeypatch, capfd
):
    """And text that is only touched does not. The noise of each epoch reads the text anew."""
    text = shutil.copytree(copy_files, tmp_path / "text")
    source, target = text / "train.source", text / "train.target"
    given = [*files(text), *options[3:], "--source-noise=0.5", "--batch-tokens=200"]
    content, seen = source.read_bytes(), []

    class Progress(callbacks.Progress):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(int(self.model.optimizer.iterations.numpy()))
            os.utime(target, ns=(len(seen), len(seen)))
            if seen[-1] == 5:
                source.write_bytes(content + b"more\n")

    monkeypatch.setattr("tf_transformer.runs.training_run.Progress", Progress)
    run_dir = tmp_path / "run"
    train = ["train", f"--run-dir={run_dir}", *given, "--batch-parts=1"]
    assert cli.main([*train, "--steps=400"]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    for words in ("source: was changed", "is saved", f"--run-dir {run_dir} --resume"):
        assert words in last
    assert newest_step(run_dir) == seen[-1] >= 5
    source.write_bytes(content)
    monkeypatch.undo()
    assert cli.main(["train", f"--run-dir={run_dir}", "--resume", f"--steps={seen[-1] + 2}"]) == 0
    assert newest_step(run_dir) == seen[-1] + 2


def test_two_processes_cannot_train_in_one_directory(tmp_path):
    for _ in range(2):
        with RunDirectory(tmp_path).lock():
            with pytest.raises(RunError, match="another process is training there"):
                with RunDirectory(tmp_path).lock():
                    pass


def test_log_lines_after_the_step_are_dropped(tmp_path):
    run = RunDirectory(tmp_path)
    run.truncate_log(3)
    assert not run.log_path.exists()
    run.log_path.write_text('{"step": 2}\n{"step": 4}\n{"step": 6}\n{"st', encoding="utf-8")
    run.truncate_log(4)
    assert run.log_path.read_text("utf-8") == '{"step": 2}\n{"step": 4}\n'
