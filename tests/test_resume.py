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

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.runs import callbacks
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.run_directory import RunDirectory, RunError

pytestmark = pytest.mark.slow

STEPS = 40
SETTINGS = [
    "--num-layers=1", "--d-model=16", "--num-heads=2", "--d-ff=32", "--dropout-rate=0.2",
    "--vocab-size=272", "--batch-tokens=60", "--max-length=30", "--deterministic",
    f"--steps={STEPS}", "--validation-steps=16", "--checkpoint-steps=3", "--accumulation-steps=2",
    "--warmup-steps=10", "--clip-norm=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_copy_task):
    folder = tmp_path_factory.mktemp("data")
    write_copy_task(folder)
    return folder


def start(data, run_dir, *options):
    options = options or (
        "--corpus=tsv", f"--train-tsv={data / 'train'}", f"--validation-tsv={data / 'validation'}",
        *SETTINGS,
    )  # fmt: skip
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
def runs(data, tmp_path_factory):
    """A run, the same run interrupted three times, and the checkpoint steps at these times."""
    folder = tmp_path_factory.mktemp("runs")
    whole, stopped = folder / "whole", folder / "stopped"
    both = [start(data, whole), start(data, stopped)]
    reached = []

    # At a random moment after the first checkpoint.
    wait_for(both[1], lambda: newest(stopped))
    time.sleep(random.uniform(0, 0.2))
    both[1].send_signal(signal.SIGKILL)
    end(both[1], -signal.SIGKILL)
    reached.append(newest(stopped))

    # In the middle of a save.
    process = start(data, stopped, "--resume")
    writing = stopped / "checkpoints"
    for leftover in writing.glob(".writing-*"):
        shutil.rmtree(leftover)
    wait_for(process, lambda: any(writing.glob(".writing-*")))
    process.send_signal(signal.SIGKILL)
    end(process, -signal.SIGKILL)
    reached.append(newest(stopped))

    # SIGTERM, as from a preempted machine.
    process = start(data, stopped, "--resume")
    wait_for(process, lambda: newest(stopped) > reached[-1])
    process.send_signal(signal.SIGTERM)
    printed = end(process, 128 + signal.SIGTERM)
    assert "Stopped at step" in printed and "Traceback" not in printed
    reached.append(newest(stopped))

    end(start(data, stopped, "--resume"), 0)
    end(both[0], 0)
    return whole, stopped, reached


def test_a_run_killed_at_any_moment_ends_with_the_same_weights(runs):
    whole, stopped, reached = runs
    assert 0 < reached[0] <= reached[1] < reached[2] < STEPS, (
        "interrupted before the end, each time later"
    )
    one, other = (Checkpoints(run_dir / "checkpoints").latest() for run_dir in (whole, stopped))
    assert one.step == other.step == STEPS
    assert (one.batches_seen, one.seeds) == (other.batches_seen, other.seeds)
    assert same_checkpoints(whole, stopped)


def test_a_run_killed_at_any_moment_is_validated_at_the_same_steps(runs):
    def validations(run_dir):
        lines = map(json.loads, (run_dir / "log.jsonl").read_text("utf-8").splitlines())
        return [(line["step"], line["val_loss"], line["val_bleu"]) for line in lines]

    whole, stopped, _ = runs
    assert validations(stopped) == validations(whole)
    assert [step for step, *_ in validations(whole)] == [16, 32, STEPS]
    assert Checkpoints(stopped / "checkpoints").best().step == (
        Checkpoints(whole / "checkpoints").best().step
    )


def test_sigterm_saves_a_checkpoint_of_the_last_step(data, tmp_path, monkeypatch):
    def send_at_step_5(callback, batch, logs=None):
        if int(callback.model.optimizer.iterations.numpy()) == 5:  # where no checkpoint is due
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(callbacks.StopOnNan, "on_train_batch_end", send_at_step_5)
    files = (f"--train-tsv={data / 'train'}", f"--validation-tsv={data / 'validation'}")
    command = ["train", f"--run-dir={tmp_path / 'run'}", "--corpus=tsv", *files, *SETTINGS]
    assert cli.main(command) == 128 + signal.SIGTERM
    latest = Checkpoints(tmp_path / "run" / "checkpoints").latest()
    assert (latest.step, latest.batches_seen) == (5, 10)


@pytest.fixture
def run_dir(runs, tmp_path):
    return shutil.copytree(runs[0], tmp_path / "run")


def refusal(run_dir, capfd):
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    status = cli.main(["train", f"--run-dir={run_dir}", "--resume", f"--steps={STEPS + 1}"])
    line = capfd.readouterr().err.splitlines()[-1]
    assert status == 2, line
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before
    return line


def replace_in_config(run_dir, old, new):
    path = run_dir / "config.toml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(("part", "pairs"), [("train", 60), ("validation", 4)])
def test_resume_refuses_a_corpus_that_has_changed(run_dir, data, tmp_path, capfd, part, pairs):
    changed = tmp_path / part
    text = (data / part).read_text("utf-8")
    last = "b" if text[-2] == "a" else "a"  # one letter, and as many sentences as before
    changed.write_text(f"{text[:-2]}{last}\n", encoding="utf-8")
    replace_in_config(run_dir, str(data / part), str(changed))
    line = refusal(run_dir, capfd)
    name, other = ("training", "validation") if part == "train" else ("validation", "training")
    assert f"{name} corpus was {pairs} pairs" in line and f"and is {pairs} pairs" in line
    assert f"{other} corpus" not in line


@pytest.mark.parametrize(
    ("setting", "changed", "named"),
    [
        ("d_ff = 32", "d_ff = 48", "d_ff was 32 and is 48"),
        ("accumulation_steps = 2", "accumulation_steps = 3", "accumulation_steps was 2 and is 3"),
        ("accumulation_steps = 2", "accumulation_steps = 1", "GradientAccumulation and is Adam"),
        ("clip_norm = 1.0", "clip_norm = 2.0", "clip_norm was 1.0 and is 2.0"),
        ('"float32"', '"mixed_bfloat16"', "precision was float32 and is mixed_bfloat16"),
        ("seed = 0", "seed = 1", "seed was 0 and is 1"),
        ("batch_tokens = 60", "batch_tokens = 61", "batch_tokens was 60 and is 61"),
        ("max_length = 30", "max_length = 29", "max_length was 30 and is 29"),
    ],
)
def test_resume_refuses_other_training_settings(run_dir, capfd, setting, changed, named):
    replace_in_config(run_dir, setting, changed)
    assert named in refusal(run_dir, capfd)


def test_resume_refuses_another_tokenizer(run_dir, data, capfd):
    sentences = (data / "train").read_text("utf-8").split()
    for side in ("source", "target"):
        tokenizer = tt.SentencePieceTokenizer.train(sentences[: len(sentences) // 2], 272)
        tokenizer.save(run_dir / "tokenizers" / f"{side}.model")
    line = refusal(run_dir, capfd)
    assert "source tokenizer was SHA-256" in line and "target tokenizer was SHA-256" in line


def test_two_processes_cannot_train_in_one_directory(tmp_path):
    with RunDirectory(tmp_path).lock():
        with pytest.raises(RunError, match="another process is training there"):
            with RunDirectory(tmp_path).lock():
                pass
    with RunDirectory(tmp_path).lock():
        pass


def test_log_lines_after_the_step_are_dropped(tmp_path):
    run = RunDirectory(tmp_path)
    run.truncate_log(3)
    assert not run.log_path.exists()
    run.log_path.write_text('{"step": 2}\n{"step": 4}\n{"step": 6}\n{"st', encoding="utf-8")
    run.truncate_log(4)
    assert run.log_path.read_text("utf-8") == '{"step": 2}\n{"step": 4}\n'
