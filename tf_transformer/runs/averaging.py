"""The average of a run's last checkpoints, which is often better than any of them."""

import itertools
import math
import time

import numpy as np

from tf_transformer.evaluation import LOSS, corpus_score
from tf_transformer.models.architectures import build_model
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.compilation import Validation
from tf_transformer.runs.restore import best_checkpoint, translator_of
from tf_transformer.runs.run import Run
from tf_transformer.runs.run_directory import say, warn


def write_best_average(run: Run, deadline: float = math.inf) -> None:
    """Average the last checkpoints of a run that has ended, and keep the average if it is better.

    The function averages the checkpoints of the newest 2, 3, … validations in float64, up to one
    that is missing. It measures each average by the metric of the run, on greedy translations of
    the validation text or by the loss. It writes the best average to `average/` if that is better
    than every checkpoint and than an average that is already there. Only the first average may be
    measured after the `deadline`, a value of `time.monotonic()`.
    """
    config, metric, tokenizers = run.config, run.metric, run.data.tokenizers
    validation = run.data.corpus.validation
    intact = run.checkpoints.intact(warn)
    validated = {each.step: each for each in intact if metric.name in each.metrics}
    # Pruning keeps the best checkpoint, too, between which and the next others may be missing.
    steps = [line["step"] for line in run.directory.log()]
    steps = [step for step in reversed(steps) if step <= max(validated, default=0)]
    newest = [validated[step] for step in itertools.takewhile(validated.__contains__, steps)]
    if len(newest) < 2:
        return
    say("Trying averages of the last checkpoints on the validation text.")
    model = build_model(config.model, config.training.precision)
    sources, targets = list(validation.sources), list(validation.targets)
    if metric == LOSS:
        validate = Validation(config, model, tokenizers, validation)
    else:
        translate = translator_of(config.data, model, *tokenizers)

    def measure() -> dict[str, float]:
        if metric == LOSS:
            return {"val_loss": validate()["loss"]}
        return corpus_score(translate(sources), targets).metrics("val_")

    measured: dict[int, dict[str, float]] = {}
    best, seconds = 0, 0.0  # the best average so far, and the time that the last one took
    sums = [np.zeros(variable.shape) for variable in model.trainable_variables]
    for count, checkpoint in enumerate(newest, start=1):
        began = time.monotonic()
        if measured and began + seconds > deadline:
            break
        checkpoint.restore(model)
        for total, variable in zip(sums, model.trainable_variables, strict=True):
            total += variable.numpy()
            variable.assign((total / count).astype(variable.dtype))
        if count > 1:
            measured[count] = measure()
            seconds = time.monotonic() - began
            values = {number: metrics[metric.name] for number, metrics in measured.items()}
            if not best or metric.rank(values[count]) > metric.rank(values[best]):
                best, weights = count, model.get_weights()
    listed = ", ".join(f"{number}: {metric.text(value)}" for number, value in values.items())
    listed = f"({listed} {metric.label})"
    record = best_checkpoint(run.directory).metrics.get(metric.name)
    if record is not None and metric.rank(values[best]) <= metric.rank(record):
        say(f"Averages of the last checkpoints {listed} are no better.")
        return
    model.set_weights(weights)
    steps = sorted(checkpoint.step for checkpoint in newest[:best])
    average = Checkpoints(run.directory.average_path, metric, keep=1)
    state = newest[0].state_with({"averaged steps": steps})
    average.write(model, newest[0].step, measured[best], signatures=run.signatures, **state)
    say(f"The average of the last {best} checkpoints is the best {listed}.")
