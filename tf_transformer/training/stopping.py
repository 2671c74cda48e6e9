"""Callbacks that stop `fit`: after updates, minutes or validations, or when a signal comes.

All workers must stop at the same update, or one waits forever for the others. So the callbacks
take `all_reduce_max`, see `Workers.all_reduce_max`.
"""

import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import keras

from tf_transformer.evaluation import BLEU, Metric
from tf_transformer.training.optimizers import ends_update, step_of
from tf_transformer.training.schedules import TimedTrapezoidSchedule

Logs = dict[str, Any] | None


class EarlyStopping(keras.callbacks.Callback):
    """Stops training after several validations in a row without a new best, once the rate falls.

    Validations at the highest learning rate so far are not counted, because most is gained in the
    decay. Unlike Keras' own callback it knows the validations before a resumed `fit`, and works on
    several workers. Put it after the callback that measures the metric.

    Args:
        patience: Validations, greater than 0.
        metric: The metric in the logs.
        earlier: The logs, with `learning_rate`, of the validations before `fit`.
        all_reduce_max: See above; a worker whose logs lack the metric follows the others.
    """

    def __init__(
        self,
        patience: int,
        metric: Metric = BLEU,
        earlier: Iterable[Mapping[str, float]] = (),
        all_reduce_max: Callable[[int], int] = int,
    ) -> None:
        super().__init__()
        self._all_reduce_max = all_reduce_max
        self._patience = patience
        self._metric = metric
        self._best = -math.inf
        self._highest_rate = 0.0
        self._since_best = 0
        for logs in earlier:
            self._add(logs)

    @property
    def is_due(self) -> bool:
        """Whether patience is exhausted."""
        return self._since_best >= self._patience

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Compares the metric with the best."""
        self._add({**logs, "learning_rate": float(self.model.optimizer.learning_rate)})
        if self._all_reduce_max(self.is_due):
            self.model.stop_training = True

    def _add(self, logs: Mapping[str, float]) -> None:
        if self._metric.name not in logs:
            return
        rank, rate = self._metric.rank(logs[self._metric.name]), logs["learning_rate"]
        is_counted = rate < self._highest_rate and rank <= self._best
        self._since_best = self._since_best + 1 if is_counted else 0
        self._best = max(rank, self._best)
        self._highest_rate = max(rate, self._highest_rate)


class StepLimit(keras.callbacks.Callback):
    """Stops training at a number of updates, counted from the first one of the run."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Compares the number of updates."""
        if step_of(self.model) >= self._steps:
            self.model.stop_training = True


class TimeLimit(keras.callbacks.Callback):
    """Stops training so that the last validation ends within a number of minutes.

    Put it after the callbacks that take time at the end of an epoch.

    Args:
        minutes: From `started`.
        started: `time.monotonic()` from which the minutes count; for a resumed run, earlier by the
            time that it had taken before.
        all_reduce_max: See above; the workers' clocks differ.
        schedule: A schedule that is told the fraction of the time that is spent, or None.
        validation_seconds: How long a validation takes, if an earlier process measured it.
        validations_after: How many validations follow the last one, if there is time: at most 5 %
            of all time is kept for them.
    """

    def __init__(
        self,
        minutes: float,
        started: float,
        all_reduce_max: Callable[[int], int] = int,
        schedule: TimedTrapezoidSchedule | None = None,
        validation_seconds: float = 0.0,
        validations_after: int = 0,
    ) -> None:
        super().__init__()
        self._all_reduce_max = all_reduce_max
        self._started = started
        self._seconds = 60 * minutes
        self._schedule = schedule
        self._validation_seconds = validation_seconds
        self._validations_after = validations_after
        self._step_ended = time.monotonic()

    @property
    def time_spent(self) -> float:
        """The fraction of the time for training that is spent, the same on all workers."""
        after = min(self._validations_after * self._validation_seconds, 0.05 * self._seconds)
        seconds = max(self._seconds - self._validation_seconds - after, 1e-9)
        spent = min((time.monotonic() - self._started) / seconds, 1.0)
        # Millionths, because the workers agree on an int.
        return self._all_reduce_max(int(1e6 * spent)) / 1e6

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Looks at the clock before the first update."""
        self._look()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Looks at the clock after each update."""
        self._step_ended = time.monotonic()
        if ends_update(self.model, batch):
            self._look()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Measures how long the validation took."""
        self._validation_seconds = time.monotonic() - self._step_ended
        self._look()

    def _look(self) -> None:
        spent = self.time_spent
        if self._schedule is not None:
            self._schedule.time_spent.assign(spent)
        if spent >= 1:
            self.model.stop_training = True


class Terminated(Exception):  # noqa: N818, a request, not an error
    """SIGTERM came, and training has stopped between two updates."""


class StopOnSignal(keras.callbacks.Callback):
    """Stops training after the current update when Ctrl-C or SIGTERM comes in a `with` block.

    After Ctrl-C `fit` ends with a validation. SIGTERM, which is sent before a machine is preempted,
    leaves no time for one that is not due anyway: `fit` raises `Terminated`, and its caller saves a
    checkpoint. A second signal of either kind is handled as before the block, which ends the
    process. Put the callback after the one that saves.

    Args:
        all_reduce_max: See above; a signal to one worker stops all.

    Attributes:
        signal: The number of the signal that came, or 0.
    """

    def __init__(self, all_reduce_max: Callable[[int], int] = int) -> None:
        super().__init__()
        self.signal = 0
        self._all_reduce_max = all_reduce_max
        self._received = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Handles the signals from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        """Restores the earlier handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Stops after an update if a signal came."""
        if not ends_update(self.model, batch):
            return
        self.on_epoch_end(batch)
        if self.signal == signal.SIGTERM and batch + 1 != self.params["steps"]:
            raise Terminated

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Stops if a signal came during the validation."""
        self.signal = self._all_reduce_max(self._received)
        if self.signal:
            self.model.stop_training = True

    def _stop(self, number: int, frame: Any) -> None:
        and_then = " and a validation" if number == signal.SIGINT else ""
        print(f"\nStopping after this step{and_then}; once more to stop at once.", file=sys.stderr)
        self._received = number
        self.__exit__()
