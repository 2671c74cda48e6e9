"""Callbacks of a run for checkpoints, progress, the log, and the end of training.

Each callback takes the `Run` and uses its public attributes.
"""

import datetime
import json
import math
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tf_transformer.errors import InputError
from tf_transformer.files import naming
from tf_transformer.training.optimizers import ends_update, step_of
from tf_transformer.training.schedules import TimedTrapezoidSchedule

if TYPE_CHECKING:
    from tf_transformer.runs.training_run import Run

_SECONDS_BETWEEN_LINES = 30
_RATES = 16  # learning rates that the log has for a validation, about
_ERASE_LINE = "\r\x1b[2K"

Logs = dict[str, Any] | None


class DivergedError(InputError):
    """Training whose loss or weights are no longer finite."""


class SaveCheckpoints(keras.callbacks.Callback):
    """Callback that writes a checkpoint before each validation, and adds the metrics after it.

    No training is lost if the validation fails or is killed. All workers count `run.batches_seen`,
    but only the chief writes. If the loss or a weight is not finite, the callback raises a
    `DivergedError` and writes no checkpoint.
    """

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self._run = run
        self._last_step = 0
        self._is_saved = True  # whether nothing was trained since the last checkpoint

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        # The loss is the mean since the last validation, so it stays NaN once it is NaN.
        self._require_finite(math.isfinite(logs["loss"]), "the loss is")
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
        self.save()  # in case the validation fails

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.save()  # in case `fit` did not validate
        run = self._run
        if run.workers.is_chief:
            seconds = time.monotonic() - run.started
            run.checkpoints.add_metrics(logs or {}, signatures=run.signatures, seconds=seconds)

    def save(self) -> None:
        """Write a checkpoint without metrics, if anything was trained since the last one."""
        if self._is_saved:
            return
        run, step = self._run, step_of(self.model)
        weights = (variable.numpy() for variable in self.model.trainable_variables)
        self._require_finite(all(np.isfinite(weight).all() for weight in weights), "weights are")
        if run.workers.is_chief:
            run.checkpoints.write(
                self.model, step, {}, batches_seen=run.batches_seen, run_metadata=run.metadata,
                seconds=time.monotonic() - run.started,
            )  # fmt: skip
        self._last_step, self._is_saved = step, True

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


class Limit(keras.callbacks.Callback):
    """Callback that stops training at its last update, or in time to validate within its minutes.

    At most 5 % of the minutes are reserved for the validation of averages. The callback also sets
    `time_spent` of a `TimedTrapezoidSchedule`. Put it after callbacks that take time at the end
    of an epoch.
    """

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self._run = run
        last_line = run.earlier_log[-1] if run.earlier_log else {}
        self._validation_seconds = last_line.get("validation_seconds", 0.0)
        self._step_ended = time.monotonic()

    @property
    def fraction(self) -> float:
        """The fraction of the training that is done, at most 1 and the same on all workers."""
        run, training = self._run, self._run.config.training
        if run.total_steps is not None:
            return min(step_of(run.model) / run.total_steps, 1.0)
        seconds = 60 * training.minutes
        averages = min(training.keep_checkpoints * self._validation_seconds, 0.05 * seconds)
        seconds = max(seconds - self._validation_seconds - averages, 1e-9)
        spent = min((time.monotonic() - run.started) / seconds, 1.0)
        # In millionths, because the workers' clocks differ and `all_reduce_max` takes an int.
        return run.workers.all_reduce_max(int(1e6 * spent)) / 1e6

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._look()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._step_ended = time.monotonic()
        if ends_update(self.model, batch):
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
    the decay. Unlike Keras' own callback, this one knows the validations before a resumed `fit` and
    supports several workers: a worker whose logs lack the metric follows the others.
    """

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self._run = run
        self._best = -math.inf
        self._highest_rate = 0.0
        self._since_best = 0
        for line in run.earlier_log:
            self._add(line)

    @property
    def is_due(self) -> bool:
        """Whether patience is exhausted."""
        patience = self._run.config.training.patience
        return patience is not None and self._since_best >= patience

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._add({**logs, "learning_rate": float(self.model.optimizer.learning_rate)})
        if self._run.workers.all_reduce_max(self.is_due):
            self.model.stop_training = True

    def _add(self, logs: dict[str, Any]) -> None:
        metric = self._run.metric
        if metric.name not in logs:
            return
        rank, rate = metric.rank(logs[metric.name]), logs["learning_rate"]
        is_counted = rate < self._highest_rate and rank <= self._best
        self._since_best = self._since_best + 1 if is_counted else 0
        self._best = max(rank, self._best)
        self._highest_rate = max(rate, self._highest_rate)


class Progress(keras.callbacks.Callback):
    """Callback that shows progress, and appends a line of JSON to the log after each validation.

    It shows the step, loss, target tokens per second, time elapsed and time left. On a
    terminal it updates one line; elsewhere it prints a line every half minute. In the log,
    `validation_seconds` is the duration of the validation including translations, and
    `validation_fraction` is the fraction of the run's time that was spent in validations.

    Put it after `SaveCheckpoints`: a validation is complete once its checkpoint has the metrics.
    """

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self._run = run
        self._batches = 0
        self._first = (0.0, 0.0)  # fraction and time at the end of the first batch
        self._seconds = 0.0  # spent in batches after the first, which is traced
        self._batch_ended = time.monotonic()
        self._validation_seconds = sum(line["validation_seconds"] for line in run.earlier_log)
        self._last_line = 0.0
        self._rates: dict[int, float] = {}  # learning rates by step since the last validation

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._batch_ended = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        run, step, now = self._run, step_of(self.model), time.monotonic()
        elapsed, minutes = now - run.started, run.config.training.minutes
        if not self._rates or step % max(1, run.config.training.validation_steps // _RATES) == 0:
            self._rates[step] = float(f"{float(self.model.optimizer.learning_rate):.4g}")
        fraction = step / run.total_steps if minutes is None else elapsed / (60 * minutes)
        fraction = min(1.0, fraction)
        if self._batches:
            self._seconds += now - self._batch_ended
        else:
            self._first = fraction, now
        self._batch_ended = now
        self._batches += 1
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
        line = {
            "step": step,
            "minutes": round((now - run.started) / 60, 2),
            "validation_seconds": round(now - self._batch_ended, 2),
            "validation_fraction": round(self._validation_seconds / (now - run.started), 3),
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
        batches = self._run.data.batches
        num_tokens = (self._batches - 1) * batches.num_target_tokens / len(batches)
        return num_tokens / self._seconds
