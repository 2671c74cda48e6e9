"""Training stops at its limit of steps, minutes or patience, and at Ctrl-C and SIGTERM."""

import signal

import keras
import pytest
from small_runs import STARTED, a_run, train

import tf_transformer as tt
from tf_transformer.evaluation import BLEU, LOSS
from tf_transformer.runs import callbacks
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training import stopping
from tf_transformer.training.schedules import TimedTrapezoidSchedule


@pytest.fixture
def periods():
    """The periods that ended with a validation, and the callback that notes them."""
    noted = []
    return noted, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: noted.append(epoch))


def limit(tmp_path, model, minutes=None, total_steps=None, **attributes):
    run = a_run(tmp_path, {"minutes": minutes}, model=model, total_steps=total_steps, **attributes)
    return callbacks.Limit(run)


@pytest.mark.parametrize("steps", [1, 4, 6])
def test_steps_end_training_whatever_the_period(fit, line_model, tmp_path, periods, steps):
    model = fit(limit(tmp_path, line_model, total_steps=steps), periods[1])
    assert int(model.optimizer.iterations) == steps
    assert len(periods[0]) == -(-steps // 4), "an incomplete last period is validated too"


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
    earlier = {"started": step_clock.now - 65, "earlier_log": [{"validation_seconds": 25.0}]}
    fit(look, step_clock, limit(tmp_path, line_model, 195 / 60, schedule=schedule, **earlier))
    assert seen[0] == pytest.approx(65 / 170, abs=1e-5)


class Send(keras.callbacks.Callback):
    """Sends a signal in the middle of a step, counted from 1."""

    def __init__(self, number, step, times=1):
        super().__init__()
        self._number, self._step, self._times = number, step, times

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations) + 1 == self._step:
            for _ in range(self._times):
                signal.raise_signal(self._number)


@pytest.fixture
def fit_with_signal(fit, line_model, tmp_path):
    """Trains, where a signal comes in a step, until it stops; returns the signal that was seen."""

    def run(number, step, *others, times=1):
        before = signal.getsignal(number)
        with stopping.StopOnSignal() as stop:
            try:
                fit(
                    Send(number, step, times),
                    *others,
                    stop,
                    limit(tmp_path, line_model, total_steps=50),
                )
            except stopping.Terminated:
                assert number == signal.SIGTERM
        assert signal.getsignal(number) is before
        return stop.signal

    return run


@pytest.mark.parametrize(
    ("number", "step", "validated"),
    [(signal.SIGINT, 6, [0, 1]), (signal.SIGTERM, 6, [0]), (signal.SIGTERM, 8, [0, 1])],
)
def test_a_signal_stops_after_the_step_and_sigterm_validates_only_if_it_is_due(
    fit_with_signal, line_model, periods, number, step, validated
):
    assert fit_with_signal(number, step, periods[1]) == number
    assert int(line_model.optimizer.iterations) == step
    assert periods[0] == validated


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_is_handled_as_before(fit_with_signal, number):
    def interrupt(number, frame):
        raise BrokenPipeError  # as good as any

    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(BrokenPipeError):
            fit_with_signal(number, 2, times=2)
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("ender", ["limit", "signal"])
def test_training_never_stops_between_the_batches_of_an_update(
    fit, step_clock, line_model, tmp_path, ender
):
    adam, begun = line_model.optimizer, []

    def interrupt(batch, logs):
        begun.append(batch)
        if len(begun) == 3:
            signal.raise_signal(signal.SIGINT)

    once = keras.callbacks.LambdaCallback(on_train_batch_begin=interrupt)
    line_model.compile(tt.GradientAccumulation(keras.optimizers.SGD(0.1), 2), "mse")
    try:
        with stopping.StopOnSignal() as stop:
            if ender == "limit":  # over after the 3rd batch of 10 seconds
                fit(step_clock, limit(tmp_path, line_model, 25 / 60))
            else:  # in the 3rd batch
                fit(once, stop)
        assert int(line_model.optimizer.iterations) == 2
        assert int(line_model.optimizer.variables[0].numpy()) == 4
    finally:
        line_model.compile(adam, "mse")


FALLING = (5.0, 4.0, 3.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("metric", "values", "rates", "is_due"),
    [
        (BLEU, (5.0, 1.0, 2.0), FALLING, True),
        (BLEU, (5.0, 1.0, 5.5), FALLING, False),
        (BLEU, (5.0, 1.0, 6.0, 2.0, 3.0), FALLING, True),
        (LOSS, (5.0, 1.0, 1.5, 1.0), FALLING, True),
        (LOSS, (5.0, 6.0, 1.0), FALLING, False),
        (BLEU, FALLING, (1.0, 2.0, 3.0, 3.0, 3.0), False),  # warm-up and plateau
        (BLEU, FALLING, (3.0, 3.0, 3.0, 2.0), False),
        (BLEU, FALLING, (3.0, 3.0, 3.0, 2.0, 1.0), True),
        (BLEU, FALLING, (3.0, 2.0, 3.0, 3.0, 2.0), False),  # a larger budget raises it again
    ],
)
def test_patience_counts_validations_since_the_best_while_the_rate_falls(
    tmp_path, metric, values, rates, is_due
):
    log = [
        {metric.name: value, "learning_rate": rate}
        for value, rate in zip(values, rates, strict=False)
    ]
    run = a_run(tmp_path, {"patience": 2}, metric, earlier_log=log)
    assert callbacks.EarlyStopping(run).is_due == is_due


@pytest.mark.usefixtures("use_small_copy_task")
def test_early_stopping_ends_a_run_and_counts_earlier_validations_when_it_resumes(
    early_stopped_run, capfd
):
    assert [line["step"] for line in RunDirectory(early_stopped_run).log()] == [2, 4, 6]
    before = {p: p.stat().st_mtime_ns for p in early_stopped_run.rglob("*")}
    train(early_stopped_run, "--resume", "--steps=1000")
    assert "Nothing to do: the last 2 validations up to step 6" in capfd.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in early_stopped_run.rglob("*")} == before
