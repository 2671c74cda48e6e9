"""The average of a run's last checkpoints, which translates better than each of them."""

import itertools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np

from tf_transformer.data.parallel import ParallelText
from tf_transformer.evaluation import bleu_signature, score
from tf_transformer.files import atomic_folder
from tf_transformer.inference.translator import Translator
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training.checkpoints import Checkpoint, CheckpointError, Checkpoints
from tf_transformer.training.restore import best_checkpoint, restore_tokenizers
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
        try:
            _write(average.checkpoints_path, model, chosen[::-1], {})
        except CheckpointError as error:
            reason = f"{error.__cause__}".splitlines()[0]
            raise RunError(f"{output_dir}: could not be written: {reason}.") from error
    return steps


def write_best_average(
    run: RunDirectory,
    tokenizers: tuple[SentencePieceTokenizer, SentencePieceTokenizer],
    validation: ParallelText,
    say: Callable[[str], None],
) -> None:
    """Averages the last checkpoints of a run that has ended, and keeps the average if it is better.

    The newest 2, 3, … validated checkpoints are averaged, as many as there are, and each average
    translates the validation text by greedy search. The best one is written to
    `run.average_path` if its BLEU is higher than that of every checkpoint and of an average that
    is there already.

    Args:
        run: The run directory.
        tokenizers: The tokenizers of source and target.
        validation: What to translate and compare with.
        say: Shows a line.
    """
    newest = [c for c in Checkpoints(run.checkpoints_path).intact(warn) if "val_bleu" in c.metrics]
    if len(newest) < 2:
        return
    config = run.config()
    model = build_model(with_tokenizers(config.model, *tokenizers), config.training.precision)
    translate = Translator.from_model(model, *tokenizers, config.data.max_length)
    bleu = {}
    for count in running_averages(model, newest):
        if count > 1:
            translations = translate(list(validation.sources))
            bleu[count] = score(translations, list(validation.targets)).bleu
    count = max(bleu, key=bleu.get)
    listed = ", ".join(f"{number}: {value:.2f}" for number, value in bleu.items())
    before = best_checkpoint(run)
    if bleu[count] <= before.metrics["val_bleu"]:
        say(f"Averages of the last checkpoints ({listed} BLEU) are no better.")
        return
    assign_average(model, newest[:count])
    _write(run.average_path, model, newest[:count], {"val_bleu": bleu[count]})
    say(f"The average of the last {count} checkpoints is the best ({listed} BLEU).")


def _write(
    path: pathlib.Path, model: keras.Model, checkpoints: list[Checkpoint], metrics: dict[str, float]
) -> None:
    """Writes a model that is the average of checkpoints, newest first, as the only one there."""
    newest = checkpoints[0]
    # A resumed run compares optimizers, so its error names this checkpoint as an average.
    steps = sorted(checkpoint.step for checkpoint in checkpoints)
    metadata = {**newest.run_metadata, "optimizer": f"none (the average of steps {steps})"}
    Checkpoints(path, keep=1).write(
        model, newest.step, metrics, is_best=True, batches_seen=newest.batches_seen,
        run_metadata=metadata, signatures={"val_bleu": bleu_signature()}, seconds=newest.seconds,
    )  # fmt: skip


def running_averages(model: keras.Model, checkpoints: Iterable[Checkpoint]) -> Iterator[int]:
    """Gives a model the average of the weights in the first checkpoint, the first two, and so on.

    Random seeds become those of the last. Weights are summed in float64.

    Args:
        model: An uncompiled model.
        checkpoints: At least one.

    Yields:
        How many are averaged.

    Raises:
        CheckpointError: One of them is of another model.
    """
    sums = [np.zeros(variable.shape) for variable in model.trainable_variables]
    for count, checkpoint in enumerate(checkpoints, start=1):
        checkpoint.require(model.config.to_dict())
        checkpoint.restore(model)
        for total, variable in zip(sums, model.trainable_variables, strict=True):
            total += variable.numpy()
            variable.assign((total / count).astype(variable.dtype))
        yield count


def assign_average(model: keras.Model, checkpoints: Iterable[Checkpoint]) -> None:
    """Gives a model the average of the weights in some checkpoints, see `running_averages`."""
    for _ in running_averages(model, checkpoints):
        pass
