"""The line that says how far training is."""

import sys
import time

import keras
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as ProgressBar

_SECONDS_BETWEEN_LINES = 30


class Progress(keras.callbacks.Callback):
    """Shows step, loss, target tokens a second, time gone and time left.

    On a terminal it is one line under whatever else is printed; in a file a new line comes every
    half minute.

    Args:
        tokens_per_batch: float, target tokens in a mean batch.
        started: float, `time.monotonic()` at the start of the command.
        total_steps: int, the step that ends training, or None where time does.
        minutes: float, from `started` to the end of training, or None where a step ends it.
        accumulation: int, batches that make a step.
    """

    def __init__(self, tokens_per_batch, started, total_steps=None, minutes=None, accumulation=1):
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
        self._seconds = 0.0  # in batches, but for the first, which is the tracing
        self._batches = 0
        self._last_line = 0.0

    def on_train_begin(self, logs=None):
        if self._first_step is None:  # a resumed run has a `fit` for the rest of a period
            self._first_step = int(self.model.optimizer.iterations.numpy())
        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = ProgressBar(
                BarColumn(20), TextColumn("{task.description}"), console=console, transient=True
            )
            self._bar.add_task("", total=1.0)
            self._bar.start()

    def on_epoch_begin(self, epoch, logs=None):
        self._batch_started = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        if self._batches:
            self._seconds += now - self._batch_started
        else:
            self._first_batch_ended = now
        self._batch_started = now
        self._batches += 1
        share, seconds_left = self._share_and_seconds_left(now)
        figures = [f"step {self._step():,}", f"loss {logs['loss']:.3f}"]
        if self.tokens_per_second is not None:
            figures.append(f"{self.tokens_per_second:,.0f} tokens/s")
        figures.append(f"{_clock(now - self._started)} gone")
        if seconds_left is not None:
            figures.append(f"{_clock(seconds_left)} left")
        line = f"{share:4.0%}  {', '.join(figures)}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=share, description=line)
        elif now - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = now
            print(line, file=sys.stderr, flush=True)

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        figures = [f"{name} {value:.4g}" for name, value in sorted(logs.items())]
        print(f"step {self._step():,}: {', '.join(figures)}", file=sys.stderr, flush=True)
        if self.tokens_per_second is not None:
            logs["tokens_per_second"] = round(self.tokens_per_second, 1)

    def on_train_end(self, logs=None):
        self.close()

    def close(self):
        """Gives the terminal back, also after an exception in `fit`."""
        if self._bar is not None:
            self._bar.stop()

    @property
    def tokens_per_second(self):
        """Target tokens a second in training alone, without tracing and validation, or None."""
        if self._batches < 2:
            return None
        return (self._batches - 1) * self._tokens_per_batch / max(self._seconds, 1e-9)

    def _step(self):
        return self._first_step + self._batches // self._accumulation

    def _share_and_seconds_left(self, now):
        if self._total_steps is None:
            seconds = 60 * self._minutes
            left = max(0.0, seconds - (now - self._started))
            return 1 - left / seconds, left
        left = max(0, self._total_steps - self._step())
        share = 1 - left / self._total_steps
        if self._batches < 2:
            return share, None
        # With the validations in between, but without the tracing, which comes once.
        seconds_per_batch = (now - self._first_batch_ended) / (self._batches - 1)
        return share, left * self._accumulation * seconds_per_batch


def _clock(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
