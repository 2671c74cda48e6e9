"""The progress line of training."""

import sys
import time
from typing import Any

import keras
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as ProgressBar

from tf_transformer.training.optimizers import step_of

_SECONDS_BETWEEN_LINES = 30

Logs = dict[str, Any] | None


class Progress(keras.callbacks.Callback):
    """Shows step, loss, target tokens a second, time elapsed and time left.

    On a terminal it is one line below whatever else is printed; elsewhere it is printed every half
    minute.

    Args:
        tokens_per_batch: Target tokens in a batch, on average.
        started: `time.monotonic()` at the start of the command.
        total_steps: The step that ends training, or None where time does.
        minutes: From `started` to the end of training, or None where a step ends it.
        accumulation: Batches in one update.
    """

    def __init__(
        self,
        tokens_per_batch: float,
        started: float,
        total_steps: int | None = None,
        minutes: float | None = None,
        accumulation: int = 1,
    ) -> None:
        super().__init__()
        self._tokens_per_batch = tokens_per_batch
        self._started = started
        self._total_steps = total_steps
        self._minutes = minutes
        self._accumulation = accumulation
        self._bar = None
        self._first_batch_ended = None
        self._first_step = None
        self._batch_started = None
        self._seconds = 0.0  # in batches but the first, which is traced
        self._batches = 0
        self._last_line = 0.0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Opens the bar."""
        if self._first_step is None:  # a resumed run calls `fit` twice
            self._first_step = step_of(self.model)
        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = ProgressBar(
                BarColumn(20), TextColumn("{task.description}"), console=console, transient=True
            )
            self._bar.add_task("", total=1.0)
            self._bar.start()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Takes the time."""
        self._batch_started = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Shows the line."""
        now = time.monotonic()
        if self._batches:
            self._seconds += now - self._batch_started
        else:
            self._first_batch_ended = now
        self._batch_started = now
        self._batches += 1
        fraction, seconds_left = self._fraction_and_seconds_left(now)
        parts = [f"step {self._step():,}", f"loss {logs['loss']:.3f}"]
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:,.0f} tokens/s")
        parts.append(f"{_clock(now - self._started)} elapsed")
        if seconds_left is not None:
            parts.append(f"{_clock(seconds_left)} left")
        line = f"{fraction:4.0%}  {', '.join(parts)}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=fraction, description=line)
        elif now - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = now
            print(line, file=sys.stderr, flush=True)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Prints the metrics, and adds the speed to the logs."""
        logs = logs or {}
        metrics = [f"{name} {value:.4g}" for name, value in sorted(logs.items())]
        print(f"step {step_of(self.model):,}: {', '.join(metrics)}", file=sys.stderr, flush=True)
        if self.tokens_per_second is not None:
            logs["tokens_per_second"] = round(self.tokens_per_second, 1)

    def on_train_end(self, logs: Logs = None) -> None:
        """Closes the bar."""
        self.close()

    def close(self) -> None:
        """Closes the bar, also after an exception in `fit`."""
        if self._bar is not None:
            self._bar.stop()

    @property
    def tokens_per_second(self) -> float | None:
        """Target tokens a second in training, without tracing and validation; None at first."""
        if self._batches < 2:
            return None
        return (self._batches - 1) * self._tokens_per_batch / max(self._seconds, 1e-9)

    def _step(self) -> int:
        return self._first_step + self._batches // self._accumulation

    def _fraction_and_seconds_left(self, now: float) -> tuple[float, float | None]:
        if self._total_steps is None:
            seconds = 60 * self._minutes
            left = max(0.0, seconds - (now - self._started))
            return 1 - left / seconds, left
        left = max(0, self._total_steps - self._step())
        fraction = 1 - left / self._total_steps
        if self._batches < 2:
            return fraction, None
        # Validations in between count, the tracing of the first batch does not.
        seconds_per_batch = (now - self._first_batch_ended) / (self._batches - 1)
        return fraction, left * self._accumulation * seconds_per_batch


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
