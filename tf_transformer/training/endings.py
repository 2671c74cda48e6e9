"""What ends training: a limit, BLEU that no longer rises, a signal."""

import math
import signal
import sys
import time

import keras

from tf_transformer.training.accumulation import ends_update


class Patience(keras.callbacks.Callback):
    """Ends training after so many validations in a row none of which was the best so far.

    Put it behind the callback that measures the figure.

    Args:
        validations: int, greater than 0.
        monitor: str, the figure in the logs; higher is better.
        earlier: list of float, what it was at the validations of this run before `fit`.
        agree: `(int) -> int`, the highest of what all workers say, see `highest_of_workers`; a
            worker whose logs lack the figure follows the others.

    Attributes:
        is_over: bool, whether so many have gone by.
    """

    def __init__(self, validations, monitor="val_bleu", earlier=(), agree=int):
        super().__init__()
        self._agree = agree
        self._validations = validations
        self._monitor = monitor
        self._best = -math.inf
        self._since_best = 0
        for value in earlier:
            self._see(value)

    @property
    def is_over(self):
        return self._since_best >= self._validations

    def on_epoch_end(self, epoch, logs=None):
        if self._monitor in logs:
            self._see(logs[self._monitor])
        if self._agree(self.is_over):
            self.model.stop_training = True

    def _see(self, value):
        self._since_best = 0 if value > self._best else self._since_best + 1
        self._best = max(value, self._best)


class StepLimit(keras.callbacks.Callback):
    """Ends training at a step, counted from the very first one of the run.

    Args:
        steps: int.
    """

    def __init__(self, steps):
        super().__init__()
        self._steps = steps

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) >= self._steps:
            self.model.stop_training = True


class TimeLimit(keras.callbacks.Callback):
    """Ends training so that it is over, last validation included, when the time is.

    Put it behind the callbacks that take time at the end of an epoch.

    Args:
        minutes: float.
        started: float, `time.monotonic()` from which the minutes count.
        agree: `(int) -> int`, the highest of what all workers say, see `highest_of_workers`: their
            clocks differ, and a worker that goes on alone waits forever.
    """

    def __init__(self, minutes, started, agree=int):
        super().__init__()
        self._agree = agree
        self._deadline = started + 60 * minutes
        self._validation_seconds = 0.0
        self._step_ended = None

    def on_train_batch_end(self, batch, logs=None):
        self._step_ended = time.monotonic()
        if ends_update(self.model, batch):
            self._stop_if_over(self._step_ended)

    def on_epoch_end(self, epoch, logs=None):
        now = time.monotonic()
        self._validation_seconds = now - self._step_ended
        self._stop_if_over(now)

    def _stop_if_over(self, now):
        if self._agree(now + self._validation_seconds >= self._deadline):
            self.model.stop_training = True


class Terminated(Exception):  # noqa: N818, for it is a request and no error
    """SIGTERM came, and training stands between two updates."""


class StopOnSignal(keras.callbacks.Callback):
    """Ctrl-C ends training after the present update, with a validation and a checkpoint.

    SIGTERM, which a machine sends that is about to be taken away, leaves no time for a validation
    unless one is due: `fit` raises `Terminated`, and whoever called it saves. A second signal of
    either kind is handled as it was before `fit`, which ends the process at once.

    Put it behind the callback that saves.

    Args:
        agree: `(int) -> int`, the highest of what all workers say, see `highest_of_workers`: a
            signal to one of them ends training for all.

    Attributes:
        signal: the number of the signal that came, or 0.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, agree=int):
        super().__init__()
        self.signal = 0
        self._agree = agree
        self._received = 0
        self._previous = {}

    def on_train_begin(self, logs=None):
        self._previous = {number: signal.signal(number, self._stop) for number in self.SIGNALS}

    def on_train_batch_end(self, batch, logs=None):
        if not ends_update(self.model, batch):
            return
        self.signal = self._agree(self._received)
        if not self.signal:
            return
        self.model.stop_training = True
        if self.signal == signal.SIGTERM and batch + 1 != self.params["steps"]:
            raise Terminated

    def on_epoch_end(self, epoch, logs=None):
        self.signal = self._agree(self._received)
        if self.signal:  # it came during the validation
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        self.restore()

    def restore(self):
        """Gives the signals back, also after an exception in `fit`."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _stop(self, number, frame):
        and_then = " and a validation" if number == signal.SIGINT else ""
        print(f"\nStopping after this step{and_then}; once more to stop at once.", file=sys.stderr)
        self._received = number
        self.restore()
