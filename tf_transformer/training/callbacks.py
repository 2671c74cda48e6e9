"""Callbacks for anybody's `fit`: validation BLEU, checkpoints, a loss that is no number."""

import math

import keras
import numpy as np

from tf_transformer.config import InputError
from tf_transformer.evaluation import score
from tf_transformer.training.accumulation import ends_update
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
        monitor: str, the figure in the logs that says which is best: the highest, and of equals
            the last.
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
        if self._every is None or not ends_update(self.model, batch):
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
            # Of equals the later: BLEU is 0 for long, and the loss falls all the while.
            is_best=value is not None and (record is None or value >= record),
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
