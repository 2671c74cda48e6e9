"""Callbacks of any `fit`: validation BLEU, checkpoints, logs, NaN."""

import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_transformer.data.text import ParallelText
from tf_transformer.errors import InputError
from tf_transformer.evaluation import score
from tf_transformer.training.checkpoints import Checkpoints
from tf_transformer.training.criterion import BLEU, Criterion
from tf_transformer.training.optimizers import ends_update, step_of

Logs = dict[str, Any] | None


class TranslationBleu(keras.callbacks.Callback):
    """Translates validation sentences with the real decoder and scores them.

    The logs get `val_bleu`, `val_chrf`, and `val_length_ratio`, the tokens of the translations over
    those of the references.

    Put it before callbacks that read the logs.

    Args:
        translate: Translates a list of str with the weights of the model in training, such as a
            `Translator.from_model`.
        parallel_text: What to translate and compare with.
        num_samples: How many translations to show.
        show: Shows one of them.
    """

    def __init__(
        self,
        translate: Callable[[list[str]], list[str]],
        parallel_text: ParallelText,
        num_samples: int = 0,
        show: Callable[[str], None] = print,
    ) -> None:
        super().__init__()
        self._translate = translate
        self._text = parallel_text
        self._num_samples = num_samples
        self._show = show

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Translates and scores."""
        translations = self._translate(list(self._text.sources))
        if logs is not None:
            scores = score(translations, list(self._text.targets))
            logs["val_bleu"], logs["val_chrf"] = scores.bleu, scores.chrf
            logs["val_length_ratio"] = scores.length_ratio
        for index in range(min(self._num_samples, len(self._text))):
            translation = translations[index] if translations[index].strip() else "(nothing)"
            self._show(f"  {self._text.sources[index]}  →  {translation}")


class DivergedError(InputError):
    """Training whose loss or weights are no longer finite."""

    @classmethod
    def of(cls, what: str, step: int, checkpoints: Checkpoints) -> "DivergedError":
        """The error for `what`, such as `"the loss is"`, with the last good checkpoint."""
        latest = checkpoints.latest()
        last = (
            f"The last good checkpoint is {latest.path}" if latest else "There is no checkpoint yet"
        )
        return cls(
            f"step {step}: {what} no longer finite. {last}. Start a new run with a lower "
            f"--learning-rate or more --warmup-steps."
        )


class StopOnNan(keras.callbacks.Callback):
    """Ends training with an error at the step at which the loss is not finite.

    Args:
        checkpoints: Named in the error.

    Raises:
        DivergedError: In `fit`.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        super().__init__()
        self._checkpoints = checkpoints

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Looks at the loss, a mean since the last validation: once NaN it stays so."""
        if not math.isfinite(logs["loss"]):
            step = step_of(self.model)
            raise DivergedError.of("the loss is", step, self._checkpoints)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Looks at the weights, before a callback translates with them."""
        _require_finite_weights(self.model, self._checkpoints)


def _require_finite_weights(model: keras.Model, checkpoints: Checkpoints) -> None:
    if not all(np.isfinite(v.numpy()).all() for v in model.trainable_variables):
        step = step_of(model)
        raise DivergedError.of("weights are", step, checkpoints)


class SaveCheckpoints(keras.callbacks.Callback):
    """Writes a checkpoint before each validation, adds its metrics after it, and marks the best.

    So the training is not lost where the validation fails or is killed.

    Args:
        checkpoints: Where they are written.
        criterion: What makes the best checkpoint; of equals it is the last.
        every: Updates between checkpoints without a validation; None for none.
        batches_seen: Batches of training data consumed before `fit`.
        run_metadata: See `Checkpoint.require`.
        signatures: How metrics were computed, such as sacreBLEU's signature, by name.
        started: `time.monotonic()` at the start of the run; None is now.
        writes: False on a worker that is not the chief: it only checks and counts.

    Attributes:
        batches_seen: Batches of training data consumed so far.
        signatures: As given.

    Raises:
        CheckpointError: In `fit`: the disk refuses the checkpoint.
        DivergedError: In `fit`: a weight is not finite; such a checkpoint is not written.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        criterion: Criterion = BLEU,
        every: int | None = None,
        batches_seen: int = 0,
        run_metadata: Mapping[str, Any] | None = None,
        signatures: Mapping[str, str] | None = None,
        started: float | None = None,
        writes: bool = True,
    ) -> None:
        super().__init__()
        self.batches_seen = batches_seen
        self._checkpoints = checkpoints
        self._criterion = criterion
        self._every = every
        self._run_metadata = run_metadata
        self.signatures = signatures or {}
        self._started = time.monotonic() if started is None else started
        self._writes = writes
        self._last_step = 0
        self._is_saved = True  # nothing is trained since

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Counts the batch, and saves where a checkpoint between validations is due."""
        self.batches_seen += 1
        self._is_saved = False
        if self._every is None or not ends_update(self.model, batch):
            return
        step = step_of(self.model)
        # An update that overflows in float16 leaves the step as it was.
        if step % self._every == 0 and step != self._last_step:
            self.save()

    def on_test_begin(self, logs: Logs = None) -> None:
        """Saves what the validation may lose."""
        self.save()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Adds the metrics of the validation."""
        self.save()  # where `fit` does not validate
        if not self._writes:
            return
        metric, rank = self._criterion.metric, self._criterion.rank
        validated = [c.metrics for c in self._checkpoints.all() if metric in c.metrics]
        value = (logs or {}).get(metric)
        self._checkpoints.add_metrics(
            logs or {},
            # Of equals the later, because BLEU stays 0 at first while the loss falls.
            is_best=value is not None and all(rank(value) >= rank(m[metric]) for m in validated),
            signatures=self.signatures,
            seconds=time.monotonic() - self._started,
        )

    def save(self) -> None:
        """Writes a checkpoint without metrics, if anything was trained since the last."""
        if self._is_saved:
            return
        self._last_step = step_of(self.model)
        _require_finite_weights(self.model, self._checkpoints)
        if self._writes:
            self._checkpoints.write(
                self.model,
                self._last_step,
                {},
                batches_seen=self.batches_seen,
                run_metadata=self._run_metadata,
                seconds=time.monotonic() - self._started,
            )
        self._is_saved = True


class RunLog(keras.callbacks.Callback):
    """Appends a line of JSON to a file after each validation: step, minutes, and all metrics.

    `validation_seconds` is the duration of this validation, translations included, and
    `validation_fraction` the fraction of the time since `started` that validations took.

    Args:
        path: The file.
        started: `time.monotonic()` at the start of the run.
        padding_fraction: The fraction of the tokens in training batches that are padding.
        validation_seconds: What validations took before `fit`, since `started`.
        notes: Texts for each line, such as sacreBLEU's signatures.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        started: float,
        padding_fraction: float,
        validation_seconds: float = 0.0,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._notes = notes or {}
        self._path = pathlib.Path(path)
        self._started = started
        self._padding_fraction = padding_fraction
        self._step_ended = time.monotonic()
        self._validation_seconds = validation_seconds  # of all validations

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Takes the time."""
        self._step_ended = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Writes the line."""
        now = time.monotonic()
        self._validation_seconds += now - self._step_ended
        line = {
            "step": step_of(self.model),
            "minutes": round((now - self._started) / 60, 2),
            "validation_seconds": round(now - self._step_ended, 2),
            "validation_fraction": round(self._validation_seconds / (now - self._started), 3),
            "padding_fraction": round(self._padding_fraction, 4),
            "learning_rate": float(self.model.optimizer.learning_rate),
            **{name: float(value) for name, value in (logs or {}).items()},
            **self._notes,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class TensorBoardLog(keras.callbacks.Callback):
    """Writes the learning rate and all metrics for TensorBoard after each validation.

    `keras.callbacks.TensorBoard` counts epochs; this one counts updates. It needs the package
    `tensorboard`.

    Args:
        path: The folder, as in `tensorboard --logdir path`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._writer = tf.summary.create_file_writer(os.path.realpath(path))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Writes the scalars."""
        learning_rate = float(self.model.optimizer.learning_rate)
        with self._writer.as_default(step=step_of(self.model)):
            for name, value in {"learning_rate": learning_rate, **(logs or {})}.items():
                tf.summary.scalar(name, value)
        self._writer.flush()
