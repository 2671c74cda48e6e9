"""Training stops at its limit of steps, minutes or patience, and at Ctrl-C and SIGTERM."""

import shutil
import signal

import keras
import pytest
from small_runs import STARTED, a_run, train

from tf_transformer.evaluation import BLEU, LOSS
from tf_transformer.runs import stopping
from tf_transformer.runs.run import Position
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training import signals
from tf_transformer.training.schedules import TimedTrapezoidSchedule


def limit(tmp_path, model, minutes, schedule=None, started=STARTED, validation_seconds=0.0):
    attributes = {"model": model, "total_steps": None, "schedule": schedule}
    run = a_run(tmp_path, {"minutes": minutes}, **attributes)
    return stopping.Limit(run, Position(started), validation_seconds)


# Periods of 4 steps and a validation take 65 seconds.
@pytest.mark.parametrize(
    ("seconds", "steps", "taken"),
    [
        (120, 7, 120), (175, 10, 175), (195, 12, 195),
        (1, 1, 35),  # over before the first step ends
        (60, 4, 65),  # over after the first validation, whose time is not known before
        (90, 4, 65),  # not over, but another step and validation would take longer
    ],
)  # fmt: skip
def test_minutes_end_with_the_last_validation(
    fit, line_model, tmp_path, step_clock, seconds, steps, taken
):
    model = fit(step_clock, limit(tmp_path, line_model, seconds / 60))
    assert int(model.optimizer.iterations) == steps
    assert step_clock.now == STARTED + taken


def test_time_drives_the_learning_rate_to_zero_at_the_end(fit, line_model, tmp_path, step_clock):
    schedule, seen = TimedTrapezoidSchedule(1.0, warmup_steps=1, decay_fraction=1.0), []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(float(schedule.time_spent.numpy()))
    )
    fit(look, step_clock, limit(tmp_path, line_model, 195 / 60, schedule=schedule))
    assert seen[0] == 0 and seen == sorted(seen)
    assert seen[3] == pytest.approx(30 / 195, abs=1e-5)
    # The time of the last validation is known after the first: 170 seconds are for the rest.
    assert seen[4] == pytest.approx(65 / 170, abs=1e-5)
    assert float(schedule.time_spent.numpy()) == 1
    # A resumed run knows it from the beginning.
    seen.clear()
    earlier = {"started": step_clock.now - 65, "validation_seconds": 25.0}
    fit(look, step_clock, limit(tmp_path, line_model, 195 / 60, schedule=schedule, **earlier))
    assert seen[0] == pytest.approx(65 / 170, abs=1e-5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_is_handled_as_before(fit, number):
    def interrupt(number, frame):
        raise BrokenPipeError  # as good as any

    def send_two(batch, logs):
        signal.raise_signal(number)
        signal.raise_signal(number)

    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(BrokenPipeError), signals.StopOnSignal() as stop:
            fit(keras.callbacks.LambdaCallback(on_train_batch_begin=send_two), stop)
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)


FALLING = (5.0, 4.0, 3.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("metric", "values", "rates", "is_due"),
    [
        (BLEU, (5.0, 1.0, 5.5), FALLING, False),
        (BLEU, (5.0, 1.0, 6.0, 2.0, 3.0), FALLING, True),
        (LOSS, (5.0, 1.0, 1.5, 1.0), FALLING, True),
        (LOSS, (5.0, 6.0, 1.0), FALLING, False),
        (BLEU, FALLING, (1.0, 2.0, 3.0, 3.0, 3.0), False),  # warm-up and plateau
        (BLEU, FALLING, (3.0, 3.0, 3.0, 2.0, 1.0), True),
        (BLEU, FALLING, (3.0, 2.0, 3.0, 3.0, 2.0), False),  # a larger budget raises it again
    ],
)
def test_patience_counts_validations_since_the_best_while_the_rate_falls(
    metric, values, rates, is_due, tmp_path
):
    log = [
        {"step": 4 * number - 1, "left_out": 1, metric.name: value, "learning_rate": rate}
        for number, (value, rate) in enumerate(zip(values, rates, strict=False), 1)
    ]
    # After Ctrl-C, say, or where the metric is not finite.
    log += [{**log[-1], "left_out": 2}, {**log[-1], metric.name: None}] * 2
    run = a_run(tmp_path, {"patience": 2}, metric)
    early = stopping.EarlyStopping(run, Position(STARTED, batches_seen=4), log)
    assert bool(early.reason()) == is_due
    early.set_model(keras.Sequential([keras.layers.Dense(1)]))
    early.model.compile("sgd")
    early.on_epoch_end(0, {metric.name: float("nan")})
    assert bool(early.reason()) == is_due


@pytest.mark.slow
@pytest.mark.usefixtures("use_small_copy_task")
def test_early_stopping_ends_a_run_and_counts_earlier_validations_when_it_resumes(
    early_stopped_run, tmp_path, capfd
):
    run_dir = shutil.copytree(early_stopped_run, tmp_path / "run")
    assert [line["step"] for line in RunDirectory(run_dir).log()] == [2, 4, 6]
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    train(run_dir, "--resume", "--steps=1000")
    assert "Nothing to do: the last 2 validations were not better" in capfd.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before
