"""Learning-rate schedules: known values, their shape, and how time drives one of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_transformer.training.schedules import (
    NoamSchedule,
    TimedTrapezoidSchedule,
    TrapezoidSchedule,
)


@pytest.mark.parametrize(
    ("d_model", "warmup", "first", "peak"),
    # Peak: (d_model * warmup)^-0.5. Step 1: the peak divided by the warm-up.
    [(512, 4000, 1.7469e-7, 6.9877e-4), (256, 400, 3.125e-3 / 400, 3.125e-3)],
)
def test_schedule_of_the_paper(d_model, warmup, first, peak):
    schedule = NoamSchedule(d_model, warmup)
    # Keras hands step 0 at the first update, which the paper calls step 1.
    assert float(schedule(0)) == pytest.approx(first, rel=5e-5)
    assert float(schedule(warmup - 1)) == pytest.approx(peak, rel=5e-5)
    # Four times the steps after the peak halve the rate.
    assert float(schedule(4 * warmup - 1)) == pytest.approx(peak / 2, rel=5e-5)
    tripled = NoamSchedule(d_model, warmup, factor=3.0)
    assert float(tripled(9)) == pytest.approx(30 * first, rel=1e-4)


# The peak, updates, warm-up, and decay fraction, and the rates.
@pytest.mark.parametrize(
    ("arguments", "rates"),
    [
        ((2.0, 10, 2, 0.4), [1, 2, 2, 2, 2, 2, 2, 1.5, 1, 0.5, 0, 0]),
        ((1.0, 8, 1, 1.0), [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ((1.0, 10, 100, 0.5), np.arange(1, 11) / 100),  # a warm-up longer than training
    ],
)
def test_the_trapezoid_rises_stays_and_falls_by_steps_or_by_time(arguments, rates):
    schedule = TrapezoidSchedule(*arguments)
    peak, total_steps, *others = arguments
    timed = TimedTrapezoidSchedule(peak, *others)
    for step, rate in enumerate(rates):
        assert float(schedule(step)) == pytest.approx(rate, rel=1e-5, abs=1e-6)
        timed.time_spent.assign(min(1.0, step / total_steps))
        assert float(timed(step)) == pytest.approx(rate, rel=1e-5, abs=1e-6)


def test_a_compiled_step_sees_the_time():
    schedule = TimedTrapezoidSchedule(1.0, warmup_steps=1, decay_fraction=1.0)
    optimizer = keras.optimizers.SGD(schedule)
    variable = keras.Variable([0.0])
    optimizer.build([variable])
    names = [v.name for v in optimizer.variables]

    @tf.function
    def update():
        optimizer.apply([tf.constant([1.0])])

    moved = []
    for spent in (0.0, 0.75, 1.0):
        schedule.time_spent.assign(spent)
        before = float(variable.numpy()[0])
        update()
        moved.append(before - float(variable.numpy()[0]))
    np.testing.assert_allclose(moved, [1, 0.25, 0], atol=1e-6)
    # A checkpoint of a run by time fits one by steps, which people change on resuming.
    by_step = keras.optimizers.SGD(TrapezoidSchedule(1.0, 10, 1))
    by_step.build([variable])
    assert names == [v.name for v in by_step.variables]


def test_a_schedule_that_would_be_wrong_without_an_error_is_refused():
    for name, value in (("total_steps", 0), ("decay_fraction", 2.0), ("warmup_steps", -1),
                        ("peak", -1.0), ("peak", np.nan)):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            TrapezoidSchedule(**{"peak": 1.0, "total_steps": 9, "warmup_steps": 3, name: value})
    for name, value in (("warmup_steps", 0), ("factor", np.nan), ("d_model", 0)):
        with pytest.raises(ValueError, match=name):
            NoamSchedule(**{"d_model": 8, name: value})
