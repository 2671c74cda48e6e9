"""Callbacks for anybody's `fit`: validation BLEU, checkpoints, log, limits."""

import inspect
import json
import math
import pathlib
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from tf_transformer.config import InputError
from tf_transformer.evaluation import score
from tf_transformer.training.accumulation import GradientAccumulation
from tf_transformer.training.adam import averaged_weights


class TranslationBleu(keras.callbacks.Callback):
    """Translates validation sentences with the real decoder and adds `val_bleu` to the logs.

    Put it before callbacks that read the logs.

    Args:
        translate: `(list of str) -> list of str`, with the weights of the model in training.
        parallel_text: `ParallelText` to translate and compare with.
        num_samples: int, how many translations to show.
        show: `(str) -> None`, what shows them.
    """

    def __init__(self, translate, parallel_text, num_samples=0, show=print):
        super().__init__()
        self._translate = translate
        self._text = parallel_text
        self._num_samples = num_samples
        self._show = show

    def on_epoch_end(self, epoch, logs=None):
        translations = self._translate(list(self._text.sources))
        if logs is not None:
            logs["val_bleu"] = score(translations, list(self._text.targets)).bleu
        for index in range(min(self._num_samples, len(self._text))):
            translation = translations[index] if translations[index].strip() else "(nothing)"
            self._show(f"  {self._text.sources[index]}  →  {translation}")


class DivergedError(InputError):
    """Training that has left the numbers."""


class SaveCheckpoints(keras.callbacks.Callback):
    """Writes a checkpoint after each validation, and remembers the best.

    Where `Adam` averages the weights, the checkpoint has the averages for weights, which are what
    is to be exported; the weights to go on from are with the optimizer.

    Args:
        checkpoints: `Checkpoints`.
        monitor: str, the figure in the logs that says which is best; the highest is.
        every: int, updates between checkpoints that wait for no validation; None for none.
        position: int, batches of training data used up before `fit`.
        made_with: dict of str to plain values, see `Checkpoint.require`.
        writes: bool, False on a worker that is not the chief: it looks and counts alone.

    Attributes:
        position: int, batches of training data used up so far.

    Raises:
        CheckpointError, in `fit`: the disk refuses the checkpoint.
        DivergedError, in `fit`: a weight is not a number; such a checkpoint is not written.
    """

    def __init__(
        self,
        checkpoints,
        monitor="val_bleu",
        every=None,
        position=0,
        made_with=None,
        writes=True,
    ):
        super().__init__()
        self.position = position
        self._checkpoints = checkpoints
        self._monitor = monitor
        self._every = every
        self._made_with = made_with
        self._writes = writes

    def on_train_batch_end(self, batch, logs=None):
        self.position += 1
        if self._every is None or not _ends_update(self.model, batch):
            return
        # Where a validation is due, it saves: what is saved there has been validated.
        is_validated = batch + 1 == self.params["steps"]
        if int(self.model.optimizer.iterations.numpy()) % self._every == 0 and not is_validated:
            self.save({})

    def on_epoch_end(self, epoch, logs=None):
        self.save(logs or {})

    def save(self, scores):
        """Writes a checkpoint now, with these scores."""
        with averaged_weights(self.model):
            self._save(scores)

    def _save(self, scores):
        step = int(self.model.optimizer.iterations.numpy())
        if not all(
            np.isfinite(variable.numpy()).all() for variable in self.model.trainable_variables
        ):
            raise _diverged("weights are", step, self._checkpoints)
        if not self._writes:
            return
        best = self._checkpoints.best()
        record = best.scores.get(self._monitor) if best else None
        value = scores.get(self._monitor)
        self._checkpoints.write(
            self.model,
            step,
            scores,
            is_best=value is not None and (record is None or value > record),
            position=self.position,
            made_with=self._made_with,
        )


class StopOnNan(keras.callbacks.Callback):
    """Ends training with an error at the step at which the loss is no number.

    Args:
        checkpoints: `Checkpoints`, to name the last good one.

    Raises:
        DivergedError, in `fit`.
    """

    def __init__(self, checkpoints):
        super().__init__()
        self._checkpoints = checkpoints

    def on_train_batch_end(self, batch, logs=None):
        # A mean since the last validation: once it is no number it stays so.
        if not math.isfinite(logs["loss"]):
            step = int(self.model.optimizer.iterations.numpy())
            raise _diverged("the loss is", step, self._checkpoints)


def _diverged(what, step, checkpoints):
    latest = checkpoints.latest()
    last = f"The last good checkpoint is {latest.path}" if latest else "There is no checkpoint yet"
    return DivergedError(
        f"step {step}: {what} no longer finite. {last}. Start a new run with a lower "
        f"--learning-rate-factor or more --warmup-steps."
    )


def _ends_update(model, batch):
    """Whether a batch, counted from 0 in this epoch, is the last of those that make an update."""
    if isinstance(model.optimizer, GradientAccumulation):
        return (batch + 1) % model.optimizer.steps == 0
    return True


class RunLog(keras.callbacks.Callback):
    """Appends a line of JSON to a file after each validation: step, minutes, and all figures.

    `validation_seconds` is what this validation took, translations included;
    `validation_share` the part of all time since `started` that validations took. `traces` counts
    how often the training step was traced in this process, which should be once.

    Args:
        path: the file.
        started: float, `time.monotonic()` at the start of the run.
        padding_share: float, share of the positions in training batches that are padding.
    """

    def __init__(self, path, started, padding_share):
        super().__init__()
        self._padding_share = padding_share
        self._path = pathlib.Path(path)
        self._started = started
        self._step_ended = started
        self._validation_seconds = 0.0  # of all validations

    def on_train_batch_end(self, batch, logs=None):
        self._step_ended = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        now = time.monotonic()
        self._validation_seconds += now - self._step_ended
        line = {
            "step": int(self.model.optimizer.iterations.numpy()),
            "minutes": round((now - self._started) / 60, 2),
            "validation_seconds": round(now - self._step_ended, 2),
            "validation_share": round(self._validation_seconds / (now - self._started), 3),
            "padding_share": round(self._padding_share, 4),
            "traces": _num_traces(self.model),
            "learning_rate": float(self.model.optimizer.learning_rate),
            **{name: float(value) for name, value in (logs or {}).items()},
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _num_traces(model):
    # Keras keeps the function that TensorFlow traces inside a plain one.
    kept = inspect.getclosurevars(model.train_function).nonlocals.values()
    counts = [
        function.experimental_get_tracing_count()
        for function in kept
        if isinstance(function, tf.types.experimental.PolymorphicFunction)
    ]
    return max(counts, default=0)


_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class=1,  # DATA_CLASS_SCALAR in TensorFlow's summary.proto
)


class TensorBoardLog(keras.callbacks.Callback):
    """Writes the learning rate and all figures for TensorBoard after each validation.

    `keras.callbacks.TensorBoard` counts epochs; this one counts updates.

    Args:
        path: the folder, as in `tensorboard --logdir path`.
    """

    def __init__(self, path):
        super().__init__()
        self._path = str(path)
        self._writer = None

    def on_epoch_end(self, epoch, logs=None):
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._path)
        learning_rate = float(self.model.optimizer.learning_rate)
        with self._writer.as_default(step=int(self.model.optimizer.iterations.numpy())):
            for name, value in {"learning_rate": learning_rate, **(logs or {})}.items():
                # `tf.summary.scalar` would do the same, but only where TensorBoard is installed.
                tf.summary.write(name, tf.constant(value, "float32"), metadata=_SCALAR)
        self._writer.flush()


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
        if _ends_update(self.model, batch):
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
        if not _ends_update(self.model, batch):
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
        print("\nStopping after this step; once more to stop at once.", file=sys.stderr)
        self._received = number
        self.restore()
