"""A callback that stops `fit` after Ctrl-C, SIGTERM or SIGHUP.

All workers must stop at the same update; otherwise some would wait forever for the others. The
callback therefore takes `Workers.all_reduce_max`.
"""

import signal
import sys
from collections.abc import Callable
from typing import Any, Self

import keras

Logs = dict[str, Any] | None


class Terminated(Exception):  # noqa: N818, a request, not an error
    """Training has stopped between two updates because of SIGTERM or SIGHUP."""


class StopOnSignal(keras.callbacks.Callback):
    """Callback that stops after the current update on a signal in its `with` block.

    After Ctrl-C, `fit` ends with a validation. SIGTERM, sent before a machine is preempted, and
    SIGHUP, sent when a terminal closes (unless `nohup` lets the process ignore it), leave time
    only for a validation that is due. Otherwise `fit` raises `Terminated`, and its
    caller saves a checkpoint. A second signal of either kind is handled as before the block, which
    ends the process. Put the callback after the one that saves.

    Args:
        all_reduce_max: `Workers.all_reduce_max`, so that a signal to one worker stops all workers.

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
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self.on_epoch_end(batch)
        if self.signal not in (0, signal.SIGINT) and batch + 1 != self.params["steps"]:
            raise Terminated

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Stop if a signal came during the validation."""
        self.signal = self._all_reduce_max(self._received)
        if self.signal:
            self.model.stop_training = True

    def _stop(self, number: int, frame: Any) -> None:
        and_then = " and a validation" if number == signal.SIGINT else ""
        print(f"\nStopping after this step{and_then}; repeat to stop at once.", file=sys.stderr)
        self._received = number
        self.__exit__()
