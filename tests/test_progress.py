"""The progress line shows only what is known already."""

import types

import pytest
import tensorflow as tf
from tf_transformer.training.progress import Progress

from tf_transformer.training import progress

STARTED = 1000.0


class Clock:
    now = STARTED

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=clock.monotonic))
    return clock


def begun(**end):
    """Progress at the start of a `fit`, of 100 target tokens a step."""
    shown = Progress(100.0, STARTED, **end)
    shown.set_model(
        types.SimpleNamespace(optimizer=types.SimpleNamespace(iterations=tf.constant(0)))
    )
    shown.on_train_begin()
    shown.on_epoch_begin(0)
    return shown


def lines_of_steps(shown, clock, capfd, *seconds):
    """What is printed after steps that take so many seconds each."""
    lines = []
    for step, passed in enumerate(seconds):
        clock.now += passed
        shown.on_train_batch_end(step, {"loss": 2.5})
        lines += [capfd.readouterr().err]
    return lines


def test_speed_and_time_left_wait_until_they_are_known(clock, capfd):
    # The first step takes as long as the tracing; the others 40 seconds.
    first, second, third = lines_of_steps(begun(total_steps=5), clock, capfd, 100, 40, 40)
    assert first == " 20%  step 1, loss 2.500, 1:40 elapsed\n"
    assert second == " 40%  step 2, loss 2.500, 2 tokens/s, 2:20 elapsed, 2:00 left\n"
    assert third == " 60%  step 3, loss 2.500, 2 tokens/s, 3:00 elapsed, 1:20 left\n"


def test_where_minutes_end_training_the_time_left_is_always_known(clock, capfd):
    first, second = lines_of_steps(begun(minutes=5.0), clock, capfd, 150, 60)
    assert first == " 50%  step 1, loss 2.500, 2:30 elapsed, 2:30 left\n"
    assert second == " 70%  step 2, loss 2.500, 2 tokens/s, 3:30 elapsed, 1:30 left\n"


def test_a_speed_is_logged_once_it_is_known(clock, capfd):
    shown = begun(total_steps=5)
    lines_of_steps(shown, clock, capfd, 100)
    logs = {"loss": 2.5}
    shown.on_epoch_end(0, logs)
    assert logs == {"loss": 2.5}
    lines_of_steps(shown, clock, capfd, 40)
    shown.on_epoch_end(0, logs)
    assert logs == {"loss": 2.5, "tokens_per_second": 2.5}
