"""The mean of the last checkpoints of a run, which translates better than each of them."""

import pathlib
import shutil
import uuid

import numpy as np

from tf_transformer.training.run_directory import RunDirectory, RunError, build_model, warn

_DEFAULT_LAST = 5


def average_checkpoints(run_dir, output_dir, last=None):
    """Writes the mean of a run's last checkpoints as a run directory of its own.

    `evaluate` and `export` take that directory like any other run's. It holds the configuration,
    the tokenizers, the test sentences, and one checkpoint with the step of the newest that went
    into it; there is no optimizer's state in it, so it cannot be trained on. Vaswani et al. 2017,
    section 6.1, average the last 5 checkpoints.

    Args:
        run_dir: path of a run directory.
        output_dir: path of the directory to make; it appears whole or not at all.
        last: int, how many of the newest undamaged checkpoints, at least 2; None for 5, or as
            many as there are.

    Returns:
        list of int, the steps of the checkpoints, oldest first.

    Raises:
        RunError: `run_dir` holds no run or too few checkpoints, `output_dir` exists, or `last` is
            less than 2.
        CheckpointError: a checkpoint is one of another model.
    """
    if last is not None and last < 2:
        raise RunError(
            f"--last must be 2 or more, since one checkpoint is its own mean; got {last}."
        )
    run, output_dir = RunDirectory.open(run_dir), pathlib.Path(output_dir)
    if output_dir.exists():
        raise RunError(f"{output_dir}: exists already. Give another OUT_DIR, or remove it.")
    chosen = run.checkpoints.newest_intact(_DEFAULT_LAST if last is None else last, warn)
    if len(chosen) < (2 if last is None else last):
        raise RunError(
            f"{run.checkpoints.directory}: has {len(chosen)} undamaged checkpoints, and "
            f"{last or 'at least 2'} are to be averaged. Give a lower --last, or train longer "
            f"with a higher --keep-checkpoints."
        )
    config = run.config()
    tokenizers = run.tokenizers()
    model = build_model(config, *tokenizers)
    assign_mean(model, chosen)
    steps = [checkpoint.step for checkpoint in chosen]
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = output_dir.parent / f".writing-{output_dir.name}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    try:
        average = RunDirectory(temporary)
        if (run.path / "test").is_dir():
            shutil.copytree(run.path / "test", average.path / "test")
        average.begin(config, *tokenizers)
        # Resuming compares optimizers, and so refuses this checkpoint with what it is.
        made_with = {**chosen[-1].made_with, "optimizer": f"none (the mean of steps {steps})"}
        average.checkpoints.write(
            model, steps[-1], {}, is_best=True, position=chosen[-1].position, made_with=made_with
        )
        temporary.rename(output_dir)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return steps


def assign_mean(model, checkpoints):
    """Gives a model the mean of the weights in some checkpoints, summed in float64.

    Random seeds become those of the last.

    Args:
        model: uncompiled `keras.Model`.
        checkpoints: list of `Checkpoint`.

    Raises:
        CheckpointError: one of them is of another model.
    """
    sums = [np.zeros(variable.shape) for variable in model.trainable_variables]
    for checkpoint in checkpoints:
        checkpoint.require(model.config.to_dict())
        checkpoint.restore(model)
        for total, variable in zip(sums, model.trainable_variables, strict=True):
            total += variable.numpy()
    for total, variable in zip(sums, model.trainable_variables, strict=True):
        variable.assign((total / len(checkpoints)).astype(variable.dtype))
