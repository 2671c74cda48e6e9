"""Callbacks of a run: checkpoints, the stop at a loss that is not finite, the log and the progress.

Each takes the `Run` and reads its plain attributes.
"""

import json
import math
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tf_transformer.errors import InputError
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.training.optimizers import ends_update, step_of

if TYPE_CHECKING:
    from tf_transformer.runs.train import Run

_SECONDS_BETWEEN_LINES = 30
_ERASE_LINE = "\r\x1b[2K"

Logs = dict[str, Any] | None


class DivergedError(InputError):
    """Training whose loss or weights are no longer finite."""

    def __init__(self, what: str, step: int, checkpoints: Checkpoints) -> None:
        latest = checkpoints.latest()
        last = (
            f"The last good checkpoint is {latest.path}" if latest else "There is no checkpoint yet"
        )
        super().__init__(
            f"step {step}: {what} no longer finite. {last}. Start a new run with a lower "
            f"--learning-rate or more --warmup-steps."
        )


class StopOnNan(keras.callbacks.Callback):
    """Ends training with a `DivergedError` at the step at which the loss is not finite."""

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self._run = run

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Looks at the loss, a mean since the last validation: once NaN it stays so."""
        if not math.isfinite(logs["loss"]):
            raise DivergedError("the loss is", step_of(self.model), self._run.checkpoints)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Looks at the weights, before a callback translates with them."""
        _require_finite_weights(self.model, self._run.checkpoints)


def _require_finite_weights(model: keras.Model, checkpoints: Checkpoints) -> None:
    if not all(np.isfinite(v.numpy()).all() for v in model.trainable_variables):
        raise DivergedError("weights are", step_of(model), checkpoints)


class SaveCheckpoints(keras.callbacks.Callback):
    """Writes a checkpoint before each validation, and adds its metrics after it.

    So training is not lost where the validation fails or is killed. It also counts
    `run.batches_seen`, on all workers; the chief alone writes.

    Raises:
        CheckpointError: In `fit`: the disk refuses the checkpoint.
        DivergedError: In `fit`: a weight is not finite; such a checkpoint is not written.
    """

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self._run = run
        self._last_step = 0
        self._is_saved = True  # nothing is trained since

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Counts the batch, and saves where a checkpoint between validations is due."""
        self._run.batches_seen += 1
        self._is_saved = False
        every = self._run.config.training.checkpoint_steps
        if every is None or not ends_update(self.model, batch):
            return
        step = step_of(self.model)
        # An update that overflows in float16 leaves the step as it was.
        if step % every == 0 and step != self._last_step:
            self.save()

    def on_test_begin(self, logs: Logs = None) -> None:
        """Saves what the validation may lose."""
        self.save()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Adds the metrics of the validation."""
        self.save()  # where `fit` does not validate
        if self._run.workers.is_chief:
            self._run.checkpoints.add_metrics(
                logs or {}, signatures=self._run.signatures, seconds=self._seconds()
            )

    def save(self) -> None:
        """Writes a checkpoint without metrics, if anything was trained since the last one."""
        if self._is_saved:
            return
        self._last_step = step_of(self.model)
        _require_finite_weights(self.model, self._run.checkpoints)
        if self._run.workers.is_chief:
            self._run.checkpoints.write(
                self.model,
                self._last_step,
                {},
                batches_seen=self._run.batches_seen,
                run_metadata=self._run.metadata,
                seconds=self._seconds(),
            )
        self._is_saved = True

    def _seconds(self) -> float:
        return time.monotonic() - self._run.started


class RunLog(keras.callbacks.Callback):
    """Appends a line of JSON to the log after each validation: step, minutes, and all metrics.

    `validation_seconds` is the duration of this validation, translations included, and
    `validation_fraction` the fraction of the time of the run that validations took.
    """

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self._run = run
        self._step_ended = time.monotonic()
        self._validation_seconds = sum(line["validation_seconds"] for line in run.earlier_log)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Takes the time."""
        self._step_ended = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Writes the line."""
        run, now = self._run, time.monotonic()
        self._validation_seconds += now - self._step_ended
        line = {
            "step": step_of(self.model),
            "minutes": round((now - run.started) / 60, 2),
            "validation_seconds": round(now - self._step_ended, 2),
            "validation_fraction": round(self._validation_seconds / (now - run.started), 3),
            "padding_fraction": round(run.data.batches.padding_fraction, 4),
            "learning_rate": float(self.model.optimizer.learning_rate),
            **{name: float(value) for name, value in (logs or {}).items()},
            "criterion": run.metric.name,
            "signature": run.signatures.get(run.metric.name, ""),
        }
        with run.directory.log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Progress(keras.callbacks.Callback):
    """Shows step, loss, target tokens a second, time elapsed and time left.

    On a terminal one line is written again and again; elsewhere a line is printed every half
    minute.
    """

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self._run = run
        self._batches = 0
        self._first = (0, 0.0)  # the step at, and the time of, the end of the first batch
        self._seconds = 0.0  # in all batches but the first, which is traced
        self._batch_started = 0.0
        self._last_line = 0.0

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Takes the time."""
        self._batch_started = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Shows the line."""
        step, now = step_of(self.model), time.monotonic()
        if self._batches:
            self._seconds += now - self._batch_started
        else:
            self._first = step, now
        self._batch_started = now
        self._batches += 1
        is_terminal = sys.stderr.isatty()
        if now - self._last_line <= (0.1 if is_terminal else _SECONDS_BETWEEN_LINES):
            return
        self._last_line = now
        fraction, seconds_left = self._fraction_and_seconds_left(step, now)
        line = f"{fraction:4.0%}  step {step:,}, loss {logs['loss']:.3f}"
        if self._seconds:
            line += f", {self._tokens_per_second():,.0f} tokens/s"
        line += f", {_clock(now - self._run.started)} elapsed"
        if seconds_left is not None:
            line += f", {_clock(seconds_left)} left"
        if is_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"{_ERASE_LINE}{line[:width]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Erases the line, below which a validation prints."""
        self.close()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Prints the metrics, and adds the speed to the logs."""
        logs = logs or {}
        metrics = [f"{name} {value:.4g}" for name, value in sorted(logs.items())]
        print(f"step {step_of(self.model):,}: {', '.join(metrics)}", file=sys.stderr, flush=True)
        if self._seconds:
            logs["tokens_per_second"] = round(self._tokens_per_second(), 1)

    def close(self) -> None:
        """Erases the line, also after an exception in `fit`."""
        if sys.stderr.isatty():
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)

    def _tokens_per_second(self) -> float:
        """Computes target tokens a second in training, without tracing and validation."""
        batches = self._run.data.batches
        num_tokens = (self._batches - 1) * batches.num_target_tokens / len(batches)
        return num_tokens / self._seconds

    def _fraction_and_seconds_left(self, step: int, now: float) -> tuple[float, float | None]:
        minutes, total_steps = self._run.config.training.minutes, self._run.total_steps
        if total_steps is None:
            left = max(0.0, 60 * minutes - (now - self._run.started))
            return 1 - left / (60 * minutes), left
        fraction = min(1.0, step / total_steps)
        first_step, first_ended = self._first
        if step <= first_step:
            return fraction, None
        # Validations in between count; the tracing of the first batch does not.
        seconds_per_step = (now - first_ended) / (step - first_step)
        return fraction, max(0, total_steps - step) * seconds_per_step


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
