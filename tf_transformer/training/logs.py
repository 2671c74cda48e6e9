"""What a run writes down after each validation."""

import csv
import inspect
import json
import pathlib
import time

import keras
import tensorflow as tf

from tf_transformer.training.checkpoints import replacing


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


class CsvLog(keras.callbacks.Callback):
    """Writes the lines of a log as a table, at the start and after each validation.

    The table is made anew each time, so that it has what the log has, also where a resumed run has
    cut that. Put it after `RunLog`.

    Args:
        read: function without arguments that returns the lines of the log, dicts of figures.
        path: the file, comma-separated, with the figures' names in its first row.
    """

    def __init__(self, read, path):
        super().__init__()
        self._read = read
        self._path = pathlib.Path(path)

    def on_train_begin(self, logs=None):
        self._write()

    def on_epoch_end(self, epoch, logs=None):
        self._write()

    def _write(self):
        lines = self._read()
        names = dict.fromkeys(name for line in lines for name in line)
        with (
            replacing(self._path) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(lines)


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
