"""A run killed at any moment and resumed is, bit for bit, the run that was never killed."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from small_runs import same_checkpoints

from tf_transformer import cli
from tf_transformer.runs import callbacks
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.run_directory import RunDirectory, RunError

STEPS = 40
SETTINGS = [
    "--num-layers=1", "--d-model=16", "--num-heads=2", "--d-ff=32", "--dropout-rate=0.2",
    "--vocab-size=272", "--batch-tokens=60", "--max-length=30", "--deterministic",
    f"--steps={STEPS}", "--validation-steps=16", "--checkpoint-steps=3", "--accumulation-steps=2",
    "--warmup-steps=10", "--clip-norm=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def options(tmp_path_factory, write_copy_task):
    data = tmp_path_factory.mktemp("data")
    write_copy_task(data)
    files = [f"--train-tsv={data / 'train'}", f"--validation-tsv={data / 'validation'}"]
    return ["--corpus=tsv", *files, *SETTINGS]


def start(run_dir, *options):
    command = [sys.executable, "-m", "tf_transformer.cli", "train", f"--run-dir={run_dir}"]
    return subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)


def wait_for(process, happened):
    deadline = time.monotonic() + 300
    while not happened():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def newest(run_dir):
    latest = Checkpoints(run_dir / "checkpoints").latest()
    return latest.step if latest else 0


def end(process, code):
    _, printed = process.communicate(timeout=300)
    assert process.returncode == code, printed
    return printed


@pytest.fixture(scope="module")
def runs(options, tmp_path_factory):
    """A run, the same run interrupted three times, and the checkpoint steps at these times."""
    folder = tmp_path_factory.mktemp("runs")
    whole, stopped = folder / "whole", folder / "stopped"
    both = [start(whole, *options), start(stopped, *options)]
    reached = []

    # At a random moment after the first checkpoint.
    wait_for(both[1], lambda: newest(stopped))
    time.sleep(random.uniform(0, 0.2))
    both[1].send_signal(signal.SIGKILL)
    end(both[1], -signal.SIGKILL)
    reached.append(newest(stopped))

    # In the middle of a save.
    process = start(stopped, "--resume")
    writing = stopped / "checkpoints"
    for leftover in writing.glob(".writing-*"):
        shutil.rmtree(leftover)
    wait_for(process, lambda: any(writing.glob(".writing-*")))
    process.send_signal(signal.SIGKILL)
    end(process, -signal.SIGKILL)
    reached.append(newest(stopped))

    # SIGTERM, as from a preempted machine.
    process = start(stopped, "--resume")
    wait_for(process, lambda: newest(stopped) > reached[-1])
    process.send_signal(signal.SIGTERM)
    printed = end(process, 128 + signal.SIGTERM)
    assert "Stopped at step" in printed and "Traceback" not in printed
    reached.append(newest(stopped))

    end(start(stopped, "--resume"), 0)
    end(both[0], 0)
    return whole, stopped, reached


@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_with_the_same_weights_and_metrics(runs):
    whole, stopped, reached = runs
    assert 0 < reached[0] <= reached[1] < reached[2] < STEPS, "interrupted, each time later"
    one, other = (Checkpoints(run_dir / "checkpoints") for run_dir in (whole, stopped))
    one, other = one.latest(), other.latest()
    assert one.step == other.step == STEPS
    assert (one.batches_seen, one.seeds) == (other.batches_seen, other.seeds)
    assert same_checkpoints(whole, stopped)

    def validations(run_dir):
        lines = map(json.loads, (run_dir / "log.jsonl").read_text("utf-8").splitlines())
        return [(line["step"], line["val_loss"], line["val_bleu"]) for line in lines]

    assert validations(stopped) == validations(whole)
    assert [step for step, *_ in validations(whole)] == [16, 32, STEPS]


def test_sigterm_saves_a_checkpoint_of_the_last_step(options, tmp_path, monkeypatch):
    class Progress(callbacks.Progress):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) == 5:  # where no checkpoint is due
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("tf_transformer.runs.train.Progress", Progress)
    given = [option for option in options if option != "--deterministic"]
    assert cli.main(["train", f"--run-dir={tmp_path / 'run'}", *given]) == 128 + signal.SIGTERM
    latest = Checkpoints(tmp_path / "run" / "checkpoints").latest()
    assert (latest.step, latest.batches_seen) == (5, 10)


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
