"""The speed of training, measured on the batches and the machine of a run.

What depends on the number of updates in a budget of minutes is chosen by it.
"""

import itertools
import statistics
import time
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers.schedules import LearningRateSchedule

from tf_transformer.config import RunConfig, TrainingConfig
from tf_transformer.data.batching import TokenBatches
from tf_transformer.training.distribution import Workers
from tf_transformer.training.limits import updates_left
from tf_transformer.training.recipe import choose_by_updates
from tf_transformer.training.schedules import TimedTrapezoidSchedule


class _Clock(keras.callbacks.Callback):
    """Notes when each batch ended."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Waits for the device, which computes the loss."""
        float(logs["loss"])
        self.times.append(time.monotonic())


def seconds_per_batch(model: keras.Model, dataset: tf.data.Dataset, num_batches: int) -> float:
    """Returns the median time of a batch, and leaves the model as it was.

    The graph of an update is built, which `fit` does not repeat. Call it before `separate_seeds`.

    Args:
        model: A compiled model, whose optimizer is built.
        dataset: The training batches.
        num_batches: How many to train, at least 3; the first two are not measured.
    """
    variables = [*model.variables, *model.optimizer.variables]
    values = [variable.numpy() for variable in variables]
    clock = _Clock()
    model.fit(dataset, steps_per_epoch=num_batches, shuffle=False, verbose=0, callbacks=[clock])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return statistics.median(b - a for a, b in itertools.pairwise(clock.times[1:]))


def seconds_per_update(
    config: TrainingConfig,
    workers: Workers,
    batches: TokenBatches,
    model: keras.Model,
    num_batches: int,
    batches_seen: int = 0,
) -> float:
    """Returns the time of an update, the same on all workers, measured over some batches."""
    steps = config.accumulation_steps
    epoch = batches_seen // len(batches)
    dataset = batches.dataset(epoch, None, 0, steps, config.chunked_logits)
    seconds = steps * seconds_per_batch(model, dataset, num_batches)
    return workers.all_reduce_max(max(1, round(1e6 * seconds))) / 1e6


def choose_by_speed(
    config: RunConfig,
    workers: Workers,
    batches: TokenBatches,
    model: keras.Model,
    schedule: LearningRateSchedule,
    started: float,
) -> RunConfig:
    """The configuration of a run by minutes, whose schedule learns what is chosen.

    Raises:
        InputError: There is too little time.
    """
    training = config.training
    # A longer run may measure for longer.
    num_batches = max(4, min(20, round(training.minutes)))
    seconds = seconds_per_update(training, workers, batches, model, num_batches)
    config = choose_by_updates(config, updates_left(training, workers, started, seconds))
    if isinstance(schedule, TimedTrapezoidSchedule):
        schedule.peak.assign(config.training.learning_rate)
        schedule.warmup_steps.assign(config.training.warmup_steps)
    return config
