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
from tf_transformer.training.optimizers import gradient_norm_of, step_of
from tf_transformer.training.step import batches_together

_SECONDS_BETWEEN_LINES = 30
_POINTS = 16  # of training between two validations, about, of which the logs tell
_MOST_LEFT_OUT = 50  # updates in a row; in float16 about 15 are usual at the start
_ERASE_LINE = "\r\x1b[2K"

Logs = dict[str, Any] | None


class DivergedError(InputError):
    """Training whose gradients or weights are no longer finite."""


class SaveCheckpoints(keras.callbacks.Callback):
    """Callback that writes a checkpoint before each validation, and adds the metrics after it.

    No training is lost if the validation fails or is killed. All workers count `batches_seen`, but
    only the chief writes. The callback raises a `DivergedError`, and writes no checkpoint, if a
    weight is not finite, or the gradients of 50 updates in a row were not.
    """

    def __init__(self, run: Run, position: Position) -> None:
        super().__init__()
        self._run, self._position = run, position
        self._last_step, self._saved_at = 0, time.monotonic()
        self._step = 0  # after the newest batch of which Python knows
        self._is_saved = True  # whether nothing was trained since the last checkpoint
        self._batches_left_out = 0  # in a row

    def on_train_begin(self, logs: Logs = None) -> None:
        self._step = step_of(self.model)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        training, number = self._run.config.training, batches_together(self.model)
        self._position.batches_seen += number
        self._is_saved, step_before = False, self._step
        self._step = step = step_of(self.model)
        self._batches_left_out = self._batches_left_out + number if step == step_before else 0
        most = _MOST_LEFT_OUT * training.accumulation_steps
        self._require_finite(
            self._batches_left_out < most, f"the gradients of {_MOST_LEFT_OUT} updates are"
        )
        is_due = time.monotonic() - self._saved_at > 60 * training.checkpoint_minutes
        if training.checkpoint_steps is not None:
            is_due |= step // training.checkpoint_steps > step_before // training.checkpoint_steps
        # An update that is left out leaves the step as it was.
        if is_due and step != self._last_step:
            self.save()

    def on_test_begin(self, logs: Logs = None) -> None:
        self.save()  # in case the validation fails

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.save()  # in case `fit` did not validate
        run = self._run
        if run.workers.is_chief:
            state = {"signatures": run.signatures, "seconds": self._position.seconds}
            run.checkpoints.add_metrics(_for_json(logs or {}), **state)

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
    `left_out` counts the updates of the run whose gradients were not finite. `training` has
    about 16 points since the validation before: the mean loss since then, the learning rate, the
    norm of the newest gradients, and the tokens per second since the point before.

    The setting `tensorboard` writes metrics and points for TensorBoard as well, which counts
    updates here; `keras.callbacks.TensorBoard` counts epochs.

    Put it after `SaveCheckpoints`: a validation is complete once its checkpoint has the metrics.
    """

    def __init__(self, run: Run, position: Position, validation_seconds: float = 0.0) -> None:
        super().__init__()
        self._run, self._position = run, position
        self._validation_seconds = validation_seconds  # of all validations
        self._first: tuple[float, float] | None = None  # fraction and time after the first batch
        self._batches, self._seconds = 0, 0.0  # after the first, which is traced
        self._batch_ended = time.monotonic()
        self._last_line = 0.0
        self._points: list[dict[str, float]] = []
        self._at_point = 0, 0.0  # batches and seconds
        self._tensorboard = None  # whose package may be missing
        if run.config.training.tensorboard and run.workers.is_chief:
            path = os.path.realpath(run.directory.tensorboard_path)
            self._tensorboard = tf.summary.create_file_writer(path)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._batch_ended = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        run, step, now = self._run, step_of(self.model), time.monotonic()
        elapsed, minutes = self._position.seconds, run.config.training.minutes
        fraction = step / run.total_steps if minutes is None else elapsed / (60 * minutes)
        fraction = min(1.0, fraction)
        if self._first is None:
            self._first = fraction, now
        else:
            self._seconds += now - self._batch_ended
            self._batches += batches_together(self.model)
        self._batch_ended = now
        every = max(1, run.config.training.validation_steps // _POINTS)
        if not self._points or step // every > self._points[-1]["step"] // every:
            self._add_point(step, logs["loss"])
        is_terminal = sys.stderr.isatty()
        if now - self._last_line <= (0.1 if is_terminal else _SECONDS_BETWEEN_LINES):
            return
        self._last_line = now
        line = f"{fraction:4.0%}  step {step:,}, loss {logs['loss']:.3f}"
        if self._seconds:
            line += f", {self._speed():,.0f} tokens/s"
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
        seconds, training = self._position.seconds, run.config.training
        line = {
            "step": step,
            "minutes": round(seconds / 60, 2),
            "validation_seconds": round(now - self._batch_ended, 2),
            "validation_fraction": round(self._validation_seconds / seconds, 3),
            "padding_fraction": round(run.data.batches.padding_fraction, 4),
            "learning_rate": float(self.model.optimizer.learning_rate),
            **_for_json(metrics),
            "criterion": run.metric.name,
            "signature": run.signatures.get(run.metric.name, ""),
            "left_out": self._position.batches_seen // training.accumulation_steps - step,
            "training": self._points,
        }
        if self._seconds:
            line["tokens_per_second"] = round(self._speed(), 1)
        path = run.directory.log_path
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._points = []
        self._show_in_tensorboard(step, metrics)

    def close(self) -> None:
        """Erase the line of progress, even after an exception in `fit`."""
        if sys.stderr.isatty():
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)

    def _add_point(self, step: int, loss: float) -> None:
        """Note how training is doing."""
        point = {
            "loss": float(loss),
            "learning_rate": float(self.model.optimizer.learning_rate),
            "gradient_norm": gradient_norm_of(self.model),
        }
        if self._batches > self._at_point[0]:
            point["tokens_per_second"] = self._speed(*self._at_point)
        self._at_point = self._batches, self._seconds
        self._show_in_tensorboard(step, point)
        rounded = {name: float(f"{value:.4g}") for name, value in point.items()}
        self._points.append({"step": step, **_for_json(rounded)})

    def _show_in_tensorboard(self, step: int, values: dict[str, float]) -> None:
        if self._tensorboard is None:
            return
        with self._tensorboard.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._tensorboard.flush()

    def _speed(self, batches: int = 0, seconds: float = 0.0) -> float:
        """Compute target tokens per second of training, without tracing and validation.

        The arguments tell how many batches, and their seconds, do not count.
        """
        data = self._run.data.batches
        per_batch = data.num_target_tokens / len(data)
        return (self._batches - batches) * per_batch / (self._seconds - seconds)


def _for_json(values: dict[str, float]) -> dict[str, float | None]:
    """Return values with None for those that are not finite, which JSON does not have."""
    return {name: float(v) if math.isfinite(v) else None for name, v in values.items()}
