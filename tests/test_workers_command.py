"""`tf-transformer train` on two workers: one fails, one is stopped, minutes run out for one."""

import json
import shutil
import signal
import time

import pytest
import small_runs
from commands import log_of
from worker_processes import TRAIN, copy_task_options, end, newest_step, start_pair, wait_for

from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.restore import best_checkpoint
from tf_transformer.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, write_copy_task):
    """One of two workers is killed; the same command again; the second worker gets SIGTERM."""
    folder = tmp_path_factory.mktemp("interrupted")
    write_copy_task(folder)
    endless = copy_task_options(
        folder, "--minutes=30", "--validation-steps=100000", "--checkpoint-steps=3",
        "--steps-per-execution=10",
    )  # fmt: skip
    run, elsewhere = folder / "run", folder / "elsewhere"
    # The other worker is given a folder of its own, to see whether it writes.
    pair = start_pair(
        [*TRAIN, f"--run-dir={run}", "--resume", *endless],
        [*TRAIN, f"--run-dir={elsewhere}", "--resume", *endless],
    )
    wait_for(lambda: newest_step(run) >= 3, *pair)
    pair[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    _, failure = end(pair[0], 138)
    seconds, stopped_at = time.monotonic() - killed, newest_step(run)

    pair = start_pair(*[[*TRAIN, f"--run-dir={run}", "--resume", *endless]] * 2)
    wait_for(lambda: newest_step(run) >= stopped_at + 3, *pair)
    pair[1].send_signal(signal.SIGTERM)
    stopped = [end(process, 128 + signal.SIGTERM)[1] for process in pair]
    return {
        "failure": failure, "seconds": seconds, "stopped_at": stopped_at, "stopped": stopped,
        "elsewhere": elsewhere, "checkpoints": Checkpoints(run / "checkpoints").all(),
    }  # fmt: skip


def test_a_killed_worker_ends_the_others_with_one_line_and_all_resume(interrupted):
    assert "another worker failed" in interrupted["failure"].splitlines()[-1]
    assert "--resume" in interrupted["failure"] and "Traceback" not in interrupted["failure"]
    assert interrupted["seconds"] < 120
    for checkpoint in interrupted["checkpoints"]:
        assert checkpoint.batches_seen == checkpoint.step
        assert checkpoint.is_intact()
    assert interrupted["checkpoints"][-1].step >= interrupted["stopped_at"] + 3


def test_the_chief_alone_writes_and_a_signal_to_one_worker_stops_all(interrupted):
    assert not interrupted["elsewhere"].exists()
    assert "the chief writes the run" in interrupted["stopped"][1]
    last = f"Stopped at step {interrupted['checkpoints'][-1].step:,} "
    assert all(last in printed for printed in interrupted["stopped"])


# The command, with a clock that advances with the updates, half as fast on the chief. It notes at
# which steps this worker translates, and the variables at the end.
WITH_CLOCK = """
import json, sys, time, types
from tf_transformer import cli
from tf_transformer.runs import callbacks, run, stopping
from tf_transformer.training import translation_bleu
from tf_transformer.training.distribution import seeds_of
compile_model, seen = run.compile_model, {}
bleu = translation_bleu.TranslationBleu.on_epoch_end
seen["translated"] = []

def compile_and_set_clock(model, config, schedule):
    compile_model(model, config, schedule)
    updates = model.optimizer.iterations
    pace = 30 if sys.argv[1] == "chief" else 60  # seconds an update
    started = time.monotonic()
    clock = lambda: started + pace * int(updates.numpy())
    for module in (callbacks, run, stopping):
        module.time = types.SimpleNamespace(monotonic=clock)
    seen["model"] = model

def note_and_translate(self, epoch, logs=None):
    seen["translated"].append(int(self.model.optimizer.iterations.numpy()))
    bleu(self, epoch, logs)

run.compile_model = compile_and_set_clock
translation_bleu.TranslationBleu.on_epoch_end = note_and_translate
status = cli.main(sys.argv[2:])
model = seen.pop("model")
variables = [*model.trainable_variables, *model.optimizer.variables]
print(json.dumps({
    **seen, "status": status, "step": int(model.optimizer.iterations.numpy()),
    "policy": model.dtype_policy.name, "seeds": [v.numpy().tolist() for v in seeds_of(model)],
    "variables": {v.path: v.numpy().tobytes().hex() for v in variables}}))
"""


@pytest.fixture(scope="module")
def timed_runs(tmp_path_factory, write_copy_task):
    """Two train in bfloat16 with accumulation, until one has had twelve minutes."""
    folder = tmp_path_factory.mktemp("clock")
    write_copy_task(folder)
    run = folder / "run"
    train = ["train", f"--run-dir={run}", *copy_task_options(
        folder, "--minutes=12", "--validation-steps=3", "--accumulation-steps=2",
        "--precision=mixed_bfloat16",
    )]  # fmt: skip
    pair = start_pair(*[["-c", WITH_CLOCK, name, *train] for name in ("chief", "other")])
    workers = [json.loads(end(process, 0)[0].splitlines()[-1]) for process in pair]
    return workers, log_of(run)


def test_the_first_worker_at_its_time_limit_stops_all_with_identical_variables(timed_runs):
    one, other = timed_runs[0]
    for worker in (one, other):
        assert (worker["status"], worker["step"]) == (0, 12)
        assert worker["policy"] == "mixed_bfloat16"
    assert one["variables"].keys() == other["variables"].keys()
    assert not [v for v in one["variables"] if one["variables"][v] != other["variables"][v]]


def test_each_worker_draws_its_own_dropout(timed_runs):
    (one, other), _ = timed_runs
    assert len(one["seeds"]) > 3
    for (seed, drawn), (other_seed, drawn_there) in zip(one["seeds"], other["seeds"], strict=True):
        assert seed != other_seed and drawn == drawn_there == 24


def test_the_chief_alone_measures_bleu_and_logs_it(timed_runs):
    (chief, other), log = timed_runs
    assert (chief["translated"], other["translated"]) == ([3, 6, 9, 12], [])
    assert [line["step"] for line in log if "val_bleu" in line] == [3, 6, 9, 12]


IN_FOLDER = """
import os, sys
from tf_transformer import cli
os.chdir(sys.argv[1])
sys.exit(cli.main(sys.argv[2:]))
"""


def test_workers_that_would_begin_with_other_weights_do_not_train(tmp_path, write_copy_task):
    write_copy_task(tmp_path)
    steps = ["--steps=4", "--validation-steps=2", "--criterion=loss"]
    base = tmp_path / "one" / "base"
    small_runs.train(base, *copy_task_options(tmp_path, *steps))
    shutil.copytree(base, tmp_path / "two" / "base")
    shutil.rmtree(best_checkpoint(RunDirectory(tmp_path / "two" / "base")).path)
    options = [f"--train-tsv={tmp_path / 'train'}", f"--validation-tsv={tmp_path / 'validation'}"]
    train = ["train", "--run-dir=run", "--initialize-from=base", "--steps=2", *options]
    chief, other = start_pair(
        *[["-c", IN_FOLDER, tmp_path / name, *train] for name in ("one", "two")]
    )
    _, errors = end(other, 2)
    assert "would train something else: initialized from is base, step-" in errors
    assert "another worker would train something else, as it says" in end(chief, 2)[1]
    assert not (tmp_path / "one" / "run").exists()
