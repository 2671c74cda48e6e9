"""The average of a run's last checkpoints, which translates better than each of them."""

import itertools
import os
import pathlib
import shutil

import keras
import numpy as np

from tf_transformer.files import atomic_folder
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.training.checkpoints import Checkpoint, CheckpointError, Checkpoints
from tf_transformer.training.restore import restore_tokenizers
from tf_transformer.training.run_directory import RunDirectory, RunError, warn

_DEFAULT_LAST = 5


def average_checkpoints(
    run_dir: str | os.PathLike[str], output_dir: str | os.PathLike[str], last: int | None = None
) -> list[int]:
    """Writes the average of a run's last checkpoints as a run directory of its own.

    `evaluate` and `export` take that directory like any other run's. It holds the configuration,
    the tokenizers, the test sentences, and one checkpoint with the step of the newest that was
    averaged, without the state of an optimizer, so it cannot be trained on. Vaswani et al. 2017,
    section 6.1, average the last 5 checkpoints.

    Args:
        run_dir: A run directory.
        output_dir: The directory to make, atomically.
        last: How many of the newest undamaged checkpoints, at least 2; None is 5, or as many as
            there are.

    Returns:
        The steps of the checkpoints, oldest first.

    Raises:
        RunError: `run_dir` holds no run or too few checkpoints, `output_dir` exists, or `last` is
            less than 2.
        CheckpointError: A checkpoint is one of another model.
    """
    if last is not None and last < 2:
        raise RunError(
            f"--last must be 2 or more, since one checkpoint is its own average; got {last}."
        )
    run, output_dir = RunDirectory.open(run_dir), pathlib.Path(output_dir)
    if output_dir.exists():
        raise RunError(f"{output_dir}: exists already. Give another OUT_DIR, or remove it.")
    newest = Checkpoints(run.checkpoints_path).intact(warn)
    chosen = list(itertools.islice(newest, _DEFAULT_LAST if last is None else last))[::-1]
    if len(chosen) < (2 if last is None else last):
        raise RunError(
            f"{run.checkpoints_path}: has {len(chosen)} undamaged checkpoints, and "
            f"{last or 'at least 2'} are to be averaged. Give a lower --last, or train longer "
            f"with a higher --keep-checkpoints."
        )
    config, tokenizers = run.config(), restore_tokenizers(run)
    model = build_model(with_tokenizers(config.model, *tokenizers), config.training.precision)
    assign_average(model, chosen)
    steps = [checkpoint.step for checkpoint in chosen]
    with atomic_folder(output_dir) as folder:
        average = RunDirectory(folder)
        if (run.path / "test").is_dir():
            shutil.copytree(run.path / "test", average.path / "test")
        average.begin(config, *tokenizers)
        # A resumed run compares optimizers, so its error names this checkpoint as an average.
        optimizer = f"none (the average of steps {steps})"
        metadata = {**chosen[-1].run_metadata, "optimizer": optimizer}
        try:
            Checkpoints(average.checkpoints_path).write(
                model, steps[-1], {}, is_best=True, batches_seen=chosen[-1].batches_seen,
                run_metadata=metadata,
            )  # fmt: skip
        except CheckpointError as error:
            reason = f"{error.__cause__}".splitlines()[0]
            raise RunError(f"{output_dir}: could not be written: {reason}.") from error
    return steps


def assign_average(model: keras.Model, checkpoints: list[Checkpoint]) -> None:
    """Gives a model the average of the weights in some checkpoints, summed in float64.

    Random seeds become those of the last.

    Args:
        model: An uncompiled model.
        checkpoints: At least one.

    Raises:
        CheckpointError: One of them is of another model.
    """
    sums = [np.zeros(variable.shape) for variable in model.trainable_variables]
    for checkpoint in checkpoints:
        checkpoint.require(model.config.to_dict())
        checkpoint.restore(model)
        for total, variable in zip(sums, model.trainable_variables, strict=True):
            total += variable.numpy()
    for total, variable in zip(sums, model.trainable_variables, strict=True):
        variable.assign((total / len(checkpoints)).astype(variable.dtype))
