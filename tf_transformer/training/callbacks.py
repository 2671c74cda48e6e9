"""Callbacks for anybody's `fit`: validation BLEU, checkpoints, log, limits."""

import json
import pathlib
import signal
import sys
import time

import keras

from tf_transformer.evaluation import score


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


class SaveCheckpoints(keras.callbacks.Callback):
    """Writes a checkpoint after each validation and remembers the best.

    Args:
        checkpoints: `Checkpoints`.
        monitor: str, the figure in the logs that says which is best; the highest is.
    """

    def __init__(self, checkpoints, monitor="val_bleu"):
        super().__init__()
        self._checkpoints = checkpoints
        self._monitor = monitor

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        best = self._checkpoints.best()
        record = best.scores.get(self._monitor) if best else None
        value = logs.get(self._monitor)
        self._checkpoints.write(
            self.model,
            step=int(self.model.optimizer.iterations),
            scores=logs,
            is_best=value is not None and (record is None or value > record),
        )


class RunLog(keras.callbacks.Callback):
    """Appends a line of JSON to a file after each validation: step, minutes, and all figures.

    Args:
        path: the file.
        started: float, `time.monotonic()` at the start of the run.
    """

    def __init__(self, path, started):
        super().__init__()
        self._path = pathlib.Path(path)
        self._started = started

    def on_epoch_end(self, epoch, logs=None):
        line = {
            "step": int(self.model.optimizer.iterations),
            "minutes": round((time.monotonic() - self._started) / 60, 2),
            "learning_rate": float(self.model.optimizer.learning_rate),
            **{name: float(value) for name, value in (logs or {}).items()},
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class StepLimit(keras.callbacks.Callback):
    """Ends training at a step, counted from the very first one of the run.

    Args:
        steps: int.
    """

    def __init__(self, steps):
        super().__init__()
        self._steps = steps

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) >= self._steps:
            self.model.stop_training = True


class TimeLimit(keras.callbacks.Callback):
    """Ends training so that it is over, last validation included, when the time is.

    Put it behind the callbacks that take time at the end of an epoch.

    Args:
        minutes: float.
        started: float, `time.monotonic()` from which the minutes count.
    """

    def __init__(self, minutes, started):
        super().__init__()
        self._deadline = started + 60 * minutes
        self._validation_seconds = 0.0
        self._step_ended = None

    def on_train_batch_end(self, batch, logs=None):
        self._step_ended = time.monotonic()
        self._stop_if_over(self._step_ended)

    def on_epoch_end(self, epoch, logs=None):
        now = time.monotonic()
        self._validation_seconds = now - self._step_ended
        self._stop_if_over(now)

    def _stop_if_over(self, now):
        if now + self._validation_seconds >= self._deadline:
            self.model.stop_training = True


class StopOnSignal(keras.callbacks.Callback):
    """Ctrl-C ends training after the present step, with a validation and a checkpoint.

    A second Ctrl-C interrupts at once.

    Attributes:
        stopped: bool, whether a signal came.
    """

    def __init__(self):
        super().__init__()
        self.stopped = False
        self._previous = None

    def on_train_begin(self, logs=None):
        self._previous = signal.signal(signal.SIGINT, self._stop)

    def on_train_end(self, logs=None):
        signal.signal(signal.SIGINT, self._previous)

    def _stop(self, number, frame):
        print("\nStopping after this step; once more to stop at once.", file=sys.stderr)
        self.stopped = True
        self.model.stop_training = True
        signal.signal(signal.SIGINT, self._previous)
