"""Callbacks of a run for checkpoints, further validation, progress and the log."""

import datetime
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_transformer.errors import InputError
from tf_transformer.files import naming
from tf_transformer.runs.run import Position, Run
from tf_transformer.training.optimizers import step_of
from tf_transformer.training.step import batches_together, ends_update

_SECONDS_BETWEEN_LINES = 30
_RATES = 16  # learning rates that the log has for a validation, about
_ERASE_LINE = "\r\x1b[2K"

Logs = dict[str, Any] | None


class DivergedError(InputError):
    """Training whose loss or weights are no longer finite."""


class SaveCheckpoints(keras.callbacks.Callback):
    """Callback that writes a checkpoint before each validation, and adds the metrics after it.

    No training is lost if the validation fails or is killed. All workers count `batches_seen`, but
    only the chief writes. If the loss or a weight is not finite, the callback raises a
    `DivergedError` and writes no checkpoint.
    """

    def __init__(self, run: Run, position: Position) -> None:
        super().__init__()
        self._run, self._position = run, position
        self._last_step, self._saved_at = 0, time.monotonic()
        self._step = 0  # after the newest batch of which Python knows
        self._is_saved = True  # whether nothing was trained since the last checkpoint

    def on_train_begin(self, logs: Logs = None) -> None:
        self._step = step_of(self.model)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        # The loss is the mean since the last validation, so it stays NaN once it is NaN.
        self._require_finite(math.isfinite(logs["loss"]), "the loss is")
        self._position.batches_seen += batches_together(self.model)
        self._is_saved, step_before = False, self._step
        self._step = step = step_of(self.model)
        if not ends_update(self.model, batch):
            return
        training = self._run.config.training
        is_due = time.monotonic() - self._saved_at > 60 * training.checkpoint_minutes
        if training.checkpoint_steps is not None:
            is_due |= step // training.checkpoint_steps > step_before // training.checkpoint_steps
        # An update that overflows in float16 leaves the step as it was.
        if is_due and step != self._last_step:
            self.save()

    def on_test_begin(self, logs: Logs = None) -> None:
        self.save()  # in case the validation fails

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.save()  # in case `fit` did not validate
        run = self._run
        if run.workers.is_chief:
            state = {"signatures": run.signatures, "seconds": self._position.seconds}
            run.checkpoints.add_metrics(logs or {}, **state)

    def save(self) -> None:
        """Write a checkpoint without metrics, if anything was trained since the last one."""
        run, step = self._run, step_of(self.model)
        if self._is_saved:
            return
        weights = (variable.numpy() for variable in self.model.trainable_variables)
        self._require_finite(all(np.isfinite(weight).all() for weight in weights), "weights are")
        if run.workers.is_chief:
            run.checkpoints.write(self.model, step, {}, **self._position.state_of(run))
        self._last_step, self._saved_at, self._is_saved = step, time.monotonic(), True

    def _require_finite(self, is_finite: bool, what: str) -> None:
        if is_finite:
            return
        latest = self._run.checkpoints.latest()
        last = (
            f"The last good checkpoint is {latest.path}" if latest else "There is no checkpoint yet"
        )
        raise DivergedError(
            f"step {step_of(self.model)}: {what} no longer finite. {last}. Start a new run with a "
            f"lower --learning-rate or more --warmup-steps."
        )


class ValidateMore(keras.callbacks.Callback):
    """Callback that adds the metrics of further validation sets, such as `val_loss_2`, to the logs.

    Put it before callbacks that read the logs.
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        super().__init__()
        self._datasets = datasets

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        for number, dataset in enumerate(self._datasets, 2):
            metrics = self.model.evaluate(dataset, verbose=0, return_dict=True)
            logs.update({f"val_{name}_{number}": value for name, value in metrics.items()})


class Progress(keras.callbacks.Callback):
    """Callback that shows progress, and appends a line of JSON to the log after each validation.

    It shows the step, loss, target tokens per second, time elapsed and time left. On a
    terminal it updates one line; elsewhere it prints a line every half minute. In the log,
    `validation_seconds` is the duration of the validation including translations, and
    `validation_fraction` is the fraction of the run's time that was spent in validations.

    Put it after `SaveCheckpoints`: a validation is complete once its checkpoint has the metrics.
    """

    def __init__(self, run: Run, position: Position, validation_seconds: float = 0.0) -> None:
        super().__init__()
        self._run, self._position = run, position
        self._validation_seconds = validation_seconds  # of all validations
        self._batches = 0
        self._first = (0.0, 0.0)  # fraction and time at the end of the first batch
        self._seconds = 0.0  # spent in batches after the first, which is traced
        self._batch_ended = time.monotonic()
        self._last_line = 0.0
        self._rates: dict[int, float] = {}  # learning rates by step since the last validation

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._batch_ended = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        run, step, now = self._run, step_of(self.model), time.monotonic()
        elapsed, minutes = self._position.seconds, run.config.training.minutes
        every = max(1, run.config.training.validation_steps // _RATES)
        if not self._rates or step // every > max(self._rates) // every:
            self._rates[step] = float(f"{float(self.model.optimizer.learning_rate):.4g}")
        fraction = step / run.total_steps if minutes is None else elapsed / (60 * minutes)
        fraction = min(1.0, fraction)
        if self._batches:
            self._seconds += now - self._batch_ended
        else:
            self._first = fraction, now
        self._batch_ended = now
        self._batches += batches_together(self.model)
        is_terminal = sys.stderr.isatty()
        if now - self._last_line <= (0.1 if is_terminal else _SECONDS_BETWEEN_LINES):
            return
        self._last_line = now
        line = f"{fraction:4.0%}  step {step:,}, loss {logs['loss']:.3f}"
        if self._seconds:
            line += f", {self._tokens_per_second():,.0f} tokens/s"
        line += f", {datetime.timedelta(seconds=round(elapsed))} elapsed"
        first_fraction, first_ended = self._first
        if fraction > first_fraction:
            # The time includes validations, but not the tracing of the first batch.
            left = (now - first_ended) * (1 - fraction) / (fraction - first_fraction)
            line += f", {datetime.timedelta(seconds=round(left))} left"
        if is_terminal:
            line = _ERASE_LINE + line[: shutil.get_terminal_size().columns - 1]
        print(line, end="" if is_terminal else "\n", file=sys.stderr, flush=True)

    def on_test_begin(self, logs: Logs = None) -> None:
        self.close()  # the validation's output replaces the line

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        run, step, now = self._run, step_of(self.model), time.monotonic()
        metrics = {name: float(value) for name, value in sorted((logs or {}).items())}
        values = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        print(f"step {step:,}: {values}", file=sys.stderr, flush=True)
        self._validation_seconds += now - self._batch_ended
        seconds = self._position.seconds
        line = {
            "step": step,
            "minutes": round(seconds / 60, 2),
            "validation_seconds": round(now - self._batch_ended, 2),
            "validation_fraction": round(self._validation_seconds / seconds, 3),
            "padding_fraction": round(run.data.batches.padding_fraction, 4),
            "learning_rate": float(self.model.optimizer.learning_rate),
            **metrics,
            "criterion": run.metric.name,
            "signature": run.signatures.get(run.metric.name, ""),
            "learning_rates": [*self._rates.items()],
        }
        self._rates.clear()
        if self._seconds:
            line["tokens_per_second"] = round(self._tokens_per_second(), 1)
        path = run.directory.log_path
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Erase the line of progress, even after an exception in `fit`."""
        if sys.stderr.isatty():
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)

    def _tokens_per_second(self) -> float:
        """Compute target tokens per second of training, without tracing and validation."""
        batches, first = self._run.data.batches, batches_together(self.model)
        return (self._batches - first) * batches.num_target_tokens / len(batches) / self._seconds


class TensorBoardLog(keras.callbacks.Callback):
    """Callback that writes the learning rate and all metrics for TensorBoard after each epoch.

    `keras.callbacks.TensorBoard` counts epochs; this callback counts updates. It needs the package
    `tensorboard`. Show the metrics with `tensorboard --logdir path`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._writer = tf.summary.create_file_writer(os.path.realpath(path))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        learning_rate = float(self.model.optimizer.learning_rate)
        with self._writer.as_default(step=step_of(self.model)):
            for name, value in {"learning_rate": learning_rate, **(logs or {})}.items():
                tf.summary.scalar(name, value)
        self._writer.flush()
