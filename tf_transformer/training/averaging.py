"""The average of a run's last checkpoints, which is better than each of them."""

import time
from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np

from tf_transformer.data.text import ParallelText
from tf_transformer.evaluation import score, signatures
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.training.checkpoints import Checkpoint, Checkpoints
from tf_transformer.training.criterion import LOSS, Criterion
from tf_transformer.training.restore import best_checkpoint, translator_of
from tf_transformer.training.run_directory import RunDirectory, warn
from tf_transformer.training.validation import Tokenizers, Validation


def write_best_average(
    run: RunDirectory,
    tokenizers: Tokenizers,
    validation: ParallelText,
    say: Callable[[str], None],
    deadline: float | None = None,
) -> None:
    """Averages the last checkpoints of a run that has ended, and keeps the average if it is better.

    The newest 2, 3, … validated checkpoints are averaged, as many as there are, and each average
    translates the validation text by greedy search, or where nothing is translated has its loss
    computed. The best one is written to `run.average_path` if it is better by the criterion of the
    run than every checkpoint, and than an average that is there already.

    Args:
        run: The run directory.
        tokenizers: The tokenizers of source and target.
        validation: The sentence pairs to compare by.
        say: Shows a line.
        deadline: `time.monotonic()` at which all but the first average must be done; None for no
            limit.
    """
    config = run.config()
    criterion = Criterion.of(config)
    checkpoints = Checkpoints(run.checkpoints_path).intact(warn)
    newest = [checkpoint for checkpoint in checkpoints if criterion.metric in checkpoint.metrics]
    if len(newest) < 2:
        return
    say("Trying averages of the last checkpoints on the validation text.")
    model = build_model(with_tokenizers(config.model, *tokenizers), config.training.precision)
    if criterion == LOSS:
        validate = Validation(config, model, tokenizers, validation)
    else:
        translate = translator_of(config.data, model, *tokenizers)

    def measure() -> float:
        if criterion == LOSS:
            return validate()["loss"]
        translations = translate(list(validation.sources))
        return criterion.of_scores(score(translations, list(validation.targets)))

    values: dict[int, float] = {}
    seconds = 0.0  # of the last average
    for count in running_averages(model, newest):
        began = time.monotonic()
        if values and deadline is not None and began + seconds > deadline:
            break
        if count > 1:
            values[count] = measure()
            seconds = time.monotonic() - began
            ranks = {number: criterion.rank(value) for number, value in values.items()}
            best = max(ranks, key=ranks.get)
            if count == best:
                weights = [variable.numpy() for variable in model.trainable_variables]
    listed = ", ".join(f"{number}: {criterion.text(value)}" for number, value in values.items())
    listed = f"({listed} {criterion.label})"
    record = best_checkpoint(run).metrics.get(criterion.metric)
    if record is not None and ranks[best] <= criterion.rank(record):
        say(f"Averages of the last checkpoints {listed} are no better.")
        return
    for variable, weight in zip(model.trainable_variables, weights, strict=True):
        variable.assign(weight)
    steps = sorted(checkpoint.step for checkpoint in newest[:best])
    Checkpoints(run.average_path, keep=1).write(
        model, newest[0].step, {criterion.metric: values[best]}, is_best=True,
        batches_seen=newest[0].batches_seen,
        run_metadata={**newest[0].run_metadata, "averaged steps": steps},
        signatures=signatures(list(validation.targets), "val_"), seconds=newest[0].seconds,
    )  # fmt: skip
    say(f"The average of the last {best} checkpoints is the best {listed}.")


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
