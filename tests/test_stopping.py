"""Training stops at its limit of steps or minutes, and at Ctrl-C and SIGTERM."""

import signal

import keras
import pytest

from tf_transformer.training import stopping
from tf_transformer.training.schedules import TimedTrapezoidSchedule


@pytest.mark.parametrize("steps", [1, 4, 6, 9])
def test_step_limit_stops_at_its_step_whatever_the_period(fit, steps):
    periods = []
    ended = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: periods.append(epoch))
    model = fit(stopping.StepLimit(steps), ended)
    assert int(model.optimizer.iterations) == steps
    assert len(periods) == -(-steps // 4), "an incomplete last period is validated too"


def test_step_limit_counts_from_the_first_step_of_the_run(fit):
    fit(stopping.StepLimit(5))
    model = fit(stopping.StepLimit(7))
    assert int(model.optimizer.iterations) == 7


# Periods of 4 steps and a validation take 65 seconds.
@pytest.mark.parametrize(("seconds", "steps"), [(120, 7), (130, 8), (175, 10), (195, 12)])
def test_time_limit_is_met_with_the_last_validation(fit, step_clock, seconds, steps):
    model = fit(step_clock, stopping.TimeLimit(seconds / 60, started=1000.0))
    assert int(model.optimizer.iterations) == steps
    assert step_clock.now == 1000 + seconds


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        (1, 1),  # over before the first step ends
        (60, 4),  # over after the first validation, whose time is not known before
        (90, 4),  # not over, but another step and validation would take longer
    ],
)
def test_time_limit_stops_before_it_would_be_exceeded(fit, step_clock, seconds, steps):
    model = fit(step_clock, stopping.TimeLimit(seconds / 60, started=1000.0))
    assert int(model.optimizer.iterations) == steps


def test_time_drives_the_learning_rate_to_zero_at_the_end(fit, step_clock):
    schedule = TimedTrapezoidSchedule(1.0, warmup_steps=1, decay_fraction=1.0)
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(float(schedule.time_spent.numpy()))
    )
    # Batches take 10 seconds, a validation 25, as in the tests above.
    fit(look, step_clock, stopping.TimeLimit(195 / 60, 1000.0, schedule=schedule))
    assert seen[0] == 0 and seen == sorted(seen)
    assert seen[3] == pytest.approx(30 / 195, abs=1e-5)
    # The time of the last validation is known after the first: 170 seconds are for the rest.
    assert seen[4] == pytest.approx(65 / 170, abs=1e-5)
    assert float(schedule.time_spent.numpy()) == 1


def test_a_resumed_time_limit_knows_the_time_and_the_validations_before(fit, step_clock):
    schedule = TimedTrapezoidSchedule(1.0, warmup_steps=1, decay_fraction=1.0)
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(float(schedule.time_spent.numpy()))
    )
    limit = stopping.TimeLimit(195 / 60, 1000.0 - 65, schedule=schedule, validation_seconds=25.0)
    fit(look, step_clock, limit)
    assert seen[0] == pytest.approx(65 / 170, abs=1e-5)


class Interrupt(keras.callbacks.Callback):
    """Sends Ctrl-C in the middle of given steps, counted from 1."""

    def __init__(self, *steps):
        super().__init__()
        self._steps = steps

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations) + 1 in self._steps:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_stops_after_the_step_and_still_validates(fit, capfd):
    before = signal.getsignal(signal.SIGINT)
    validated = []
    stop = stopping.StopOnSignal()
    ended = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: validated.append(epoch))
    model = fit(Interrupt(6), stop, ended, stopping.StepLimit(50))
    assert stop.signal == signal.SIGINT
    assert int(model.optimizer.iterations) == 6
    assert validated == [0, 1]
    assert signal.getsignal(signal.SIGINT) is before
    assert "once more" in capfd.readouterr().err


@pytest.fixture
def python_handles_ctrl_c():
    """Installs Python's own handler, which processes in a shell's background lack."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_a_second_ctrl_c_interrupts_at_once(fit):
    class Twice(Interrupt):
        def on_train_batch_begin(self, batch, logs=None):
            super().on_train_batch_begin(batch)
            super().on_train_batch_begin(batch)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(stopping.StopOnSignal(), Twice(2), stopping.StepLimit(50))
    assert signal.getsignal(signal.SIGINT) is before


class Terminate(Interrupt):
    """Sends SIGTERM instead."""

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations) + 1 in self._steps:
            signal.raise_signal(signal.SIGTERM)


def test_sigterm_stops_after_the_step_without_a_validation(fit, line_model):
    before = signal.getsignal(signal.SIGTERM)
    stop = stopping.StopOnSignal()
    validated = []
    ended = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: validated.append(epoch))
    with pytest.raises(stopping.Terminated):
        fit(Terminate(6), ended, stop)
    assert stop.signal == signal.SIGTERM
    assert int(line_model.optimizer.iterations) == 6
    assert validated == [0]
    stop.restore()
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_at_the_end_of_a_period_still_validates(fit):
    stop = stopping.StopOnSignal()
    validated = []
    ended = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: validated.append(epoch))
    model = fit(Terminate(8), ended, stop)
    assert int(model.optimizer.iterations) == 8
    assert validated == [0, 1]


def test_a_second_sigterm_is_handled_as_before(fit):
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:

        class Twice(Terminate):
            def on_train_batch_begin(self, batch, logs=None):
                super().on_train_batch_begin(batch)
                super().on_train_batch_begin(batch)

        stop = stopping.StopOnSignal()
        with pytest.raises(stopping.Terminated):
            fit(Twice(2), stop)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_ctrl_c_nothing_is_stopped(fit):
    before = signal.getsignal(signal.SIGINT)
    stop = stopping.StopOnSignal()
    model = fit(stop, stopping.StepLimit(5))
    assert signal.getsignal(signal.SIGINT) is before
    assert not stop.signal
    assert int(model.optimizer.iterations) == 5
