"""The average of a run's last checkpoints, which translates better than each of them."""

import time
from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np

from tf_transformer.data.parallel import ParallelText
from tf_transformer.evaluation import bleu_signature, score
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training.checkpoints import Checkpoint, Checkpoints
from tf_transformer.training.restore import best_checkpoint, translator_of
from tf_transformer.training.run_directory import RunDirectory, warn


def write_best_average(
    run: RunDirectory,
    tokenizers: tuple[SentencePieceTokenizer, SentencePieceTokenizer],
    validation: ParallelText,
    say: Callable[[str], None],
    deadline: float | None = None,
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
        deadline: `time.monotonic()` at which all but the first average must be done; None for no
            limit.
    """
    newest = [c for c in Checkpoints(run.checkpoints_path).intact(warn) if "val_bleu" in c.metrics]
    if len(newest) < 2:
        return
    config = run.config()
    model = build_model(with_tokenizers(config.model, *tokenizers), config.training.precision)
    translate = translator_of(config.data, model, *tokenizers)
    bleu: dict[int, float] = {}
    seconds = 0.0  # of the last average
    for count in running_averages(model, newest):
        began = time.monotonic()
        if bleu and deadline is not None and began + seconds > deadline:
            break
        if count > 1:
            translations = translate(list(validation.sources))
            bleu[count] = score(translations, list(validation.targets)).bleu
            seconds = time.monotonic() - began
            if count == max(bleu, key=bleu.get):
                weights = [variable.numpy() for variable in model.trainable_variables]
    count = max(bleu, key=bleu.get)
    listed = ", ".join(f"{number}: {value:.2f}" for number, value in bleu.items())
    before = best_checkpoint(run)
    if bleu[count] <= before.metrics["val_bleu"]:
        say(f"Averages of the last checkpoints ({listed} BLEU) are no better.")
        return
    for variable, weight in zip(model.trainable_variables, weights, strict=True):
        variable.assign(weight)
    steps = sorted(checkpoint.step for checkpoint in newest[:count])
    Checkpoints(run.average_path, keep=1).write(
        model, newest[0].step, {"val_bleu": bleu[count]}, is_best=True,
        batches_seen=newest[0].batches_seen,
        run_metadata={**newest[0].run_metadata, "averaged steps": steps},
        signatures={"val_bleu": bleu_signature()}, seconds=newest[0].seconds,
    )  # fmt: skip
    say(f"The average of the last {count} checkpoints is the best ({listed} BLEU).")


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
