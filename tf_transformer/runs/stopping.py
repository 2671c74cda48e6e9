"""Callbacks that end a training: at its limit, or once it no longer improves."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tf_transformer.runs.run import Position, Run
from tf_transformer.training.optimizers import step_of
from tf_transformer.training.schedules import TimedTrapezoidSchedule

Logs = dict[str, Any] | None


class Limit(keras.callbacks.Callback):
    """Callback that stops training at its last update, or in time to validate within its minutes.

    The callback also sets `time_spent` of a `TimedTrapezoidSchedule`. Put it after callbacks that
    take time at the end of an epoch.
    """

    def __init__(self, run: Run, position: Position, validation_seconds: float = 0.0) -> None:
        super().__init__()
        self._run, self._position = run, position
        self._validation_seconds = validation_seconds
        self._step_ended = time.monotonic()

    @property
    def fraction(self) -> float:
        """The fraction of the training that is done, at most 1 and the same on all workers."""
        run = self._run
        if run.total_steps is not None:
            return min(step_of(run.model) / run.total_steps, 1.0)
        seconds = max(60 * run.config.training.minutes - self._validation_seconds, 1e-9)
        # In millionths, because the workers' clocks differ and `all_reduce_max` takes an int.
        millionths = int(1e6 * min(self._position.seconds / seconds, 1.0))
        return run.workers.all_reduce_max(millionths) / 1e6

    def reason(self) -> str:
        """Return why training is over, or an empty str; every worker must call this."""
        if self.fraction < 1:
            return ""
        step, total_steps = step_of(self._run.model), self._run.total_steps
        if total_steps is None:
            minutes = self._run.config.training.minutes
            return f"its {minutes:g} minutes are over; give more --minutes"
        return f"the run is at step {step:,} of {total_steps:,}; give more --epochs or --steps"

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._look()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._step_ended = time.monotonic()
        self._look()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._validation_seconds = time.monotonic() - self._step_ended
        self._look()

    def _look(self) -> None:
        fraction = self.fraction
        if isinstance(self._run.schedule, TimedTrapezoidSchedule):
            self._run.schedule.time_spent.assign(fraction)
        if fraction >= 1:
            self.model.stop_training = True


class EarlyStopping(keras.callbacks.Callback):
    """Callback that stops training after `patience` validations in a row without a new best.

    Validations at the highest learning rate so far do not count, because the model improves most in
    the decay, nor do those that are not due, after Ctrl-C or at the end. Unlike Keras'
    own callback, this one knows the validations before a resumed `fit` and supports several
    workers: a worker whose logs lack the metric follows the others.

    Args:
        run: The run, whose `patience` counts validations; None never stops.
        position: Where the run is.
        log: The lines of `log.jsonl` before.
    """

    def __init__(self, run: Run, position: Position, log: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._run, self._position = run, position
        self._best = -math.inf
        self._highest_rate = 0.0
        self._since_best = 0
        for line in log:
            self._add(line, line["step"] + line.get("left_out", 0))

    def reason(self) -> str:
        """Return why training is over, or an empty str."""
        patience = self._run.config.training.patience
        if patience is None or self._since_best < patience:
            return ""
        return (
            f"the last {patience} validations were not better than one before; give more --patience"
        )

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        updates = self._position.batches_seen // self._run.config.training.accumulation_steps
        rate = float(self.model.optimizer.learning_rate)
        self._add({**logs, "learning_rate": rate}, updates)
        if self._run.workers.all_reduce_max(bool(self.reason())):
            self.model.stop_training = True

    def _add(self, logs: Mapping[str, Any], updates: int) -> None:
        metric = self._run.metric
        is_due = updates % self._run.config.training.validation_steps == 0
        value = logs.get(metric.name)
        if not is_due or value is None or not math.isfinite(value):
            return
        rank, rate = metric.rank(value), logs["learning_rate"]
        is_counted = rate < self._highest_rate and rank <= self._best
        self._since_best = self._since_best + 1 if is_counted else 0
        self._best = max(rank, self._best)
        self._highest_rate = max(rate, self._highest_rate)
