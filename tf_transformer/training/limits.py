"""When a run ends: its limits of updates, time and patience, known from what it has done before."""

import time

import keras
from keras.optimizers.schedules import LearningRateSchedule

from tf_transformer.config import RunConfig, TrainingConfig
from tf_transformer.errors import InputError
from tf_transformer.training import stopping
from tf_transformer.training.criterion import Criterion
from tf_transformer.training.distribution import Workers
from tf_transformer.training.optimizers import step_of
from tf_transformer.training.run_directory import RunDirectory
from tf_transformer.training.schedules import TimedTrapezoidSchedule

_FEWEST_UPDATES = 10
_FRACTION_OF_UPDATES = 0.93  # of the time; the rest is validation


def updates_left(
    training: TrainingConfig, workers: Workers, started: float, seconds_per_update: float
) -> int:
    """The updates for which there is time, about; the same number on all workers.

    Args:
        training: The settings.
        workers: The workers, whose clocks differ.
        started: `time.monotonic()` from which the minutes count.
        seconds_per_update: What an update takes.

    Raises:
        InputError: There are too few to learn anything.
    """
    seconds_spent = time.monotonic() - started
    seconds = _FRACTION_OF_UPDATES * max(0.0, 60 * training.minutes - seconds_spent)
    updates = workers.all_reduce_max(int(seconds / seconds_per_update))
    if updates < _FEWEST_UPDATES:
        raise InputError(
            f"The {training.minutes:g} minutes have time for {updates} updates, after "
            f"{seconds_spent:.0f} s for the text and the graph. Nothing was written; give more "
            f"--minutes."
        )
    return updates


def early_stopping(
    config: RunConfig, run: RunDirectory, model: keras.Model, workers: Workers
) -> stopping.EarlyStopping | None:
    """The callback of `patience`, which knows earlier validations; None where there is none."""
    if config.training.patience is None:
        return None
    criterion = Criterion.of(config)
    lines = log_before(run, model)
    earlier = [
        (line[criterion.metric], line["learning_rate"])
        for line in lines
        if criterion.metric in line
    ]
    return stopping.EarlyStopping(
        config.training.patience, criterion, earlier, workers.all_reduce_max
    )


def time_limit(
    training: TrainingConfig,
    run: RunDirectory,
    model: keras.Model,
    schedule: LearningRateSchedule,
    workers: Workers,
    started: float,
) -> stopping.TimeLimit:
    """The callback of `minutes`, which tells the schedule the time."""
    earlier = log_before(run, model)
    return stopping.TimeLimit(
        training.minutes, started, workers.all_reduce_max,
        schedule if isinstance(schedule, TimedTrapezoidSchedule) else None,
        validation_seconds=earlier[-1]["validation_seconds"] if earlier else 0.0,
        validations_after=training.keep_checkpoints,  # those of averages
    )  # fmt: skip


def reason_to_stop(
    training: TrainingConfig,
    model: keras.Model,
    total_steps: int | None,
    limit: stopping.StepLimit | stopping.TimeLimit,
    patience: stopping.EarlyStopping | None,
) -> str:
    """Why a resumed run has reached its end already, or an empty str."""
    step = step_of(model)
    if total_steps is not None and step >= total_steps:
        return f"the run is at step {step:,} of {total_steps:,}; give more --epochs or --steps"
    if isinstance(limit, stopping.TimeLimit) and limit.is_due:
        return f"its {training.minutes:g} minutes are over; give more --minutes"
    if patience and patience.is_due:
        return (
            f"the last {training.patience} validations up to step {step:,} were not better than "
            f"one before; a new run without --patience would go on"
        )
    return ""


def log_before(run: RunDirectory, model: keras.Model) -> list[dict[str, float]]:
    """The log of the run up to the model's step."""
    return [line for line in run.log() if line["step"] <= step_of(model)]
