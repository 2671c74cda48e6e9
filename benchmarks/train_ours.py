"""Train the model of `tf-transformer train` by `model.fit`, with the same optimizer and batches."""

import time

STARTED = time.monotonic()

from tf_transformer.machine import plain_graphs, prepare_command, prepare_cpu  # noqa: E402

prepare_command()

import dataclasses  # noqa: E402
from typing import Any  # noqa: E402

import engine  # noqa: E402
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from tokenized_text import load_batches, load_text, target_tokens  # noqa: E402

from tf_transformer.data.token_batches import TokenBatches  # noqa: E402
from tf_transformer.data.tokenized_text import TokenizedText  # noqa: E402
from tf_transformer.models.architectures import build_model, preset  # noqa: E402
from tf_transformer.run_tables import TrainingConfig  # noqa: E402
from tf_transformer.runs.compilation import compile_model  # noqa: E402
from tf_transformer.training.metrics import TokenLoss  # noqa: E402
from tf_transformer.training.schedules import NoamSchedule  # noqa: E402
from tf_transformer.training.step import TrainingStep  # noqa: E402

PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


class StepClock(keras.callbacks.Callback):
    """A clock of steps; it fetches the loss after each step, as the progress line does.

    Attributes:
        moments: `time.monotonic()` at the end of each step.
        loss: The loss after the newest step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[float] = []
        self.loss = float("nan")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.loss = float(logs["loss"])
        self.moments.append(time.monotonic())


def train(job: dict[str, Any]) -> dict[str, Any]:
    num_parts = 2 if job["threads"] > 1 else 1  # as the recipe chooses
    prepare_cpu(job["threads"], num_parts)
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])
    keras.utils.set_random_seed(job["seed"])

    batches = TokenBatches(
        TokenizedText(*load_text(job["folder"])),
        job["batch_tokens"],
        pad_id=job["pad_id"],
        bos_id=job["bos_id"],
        eos_id=job["eos_id"],
        seed=job["seed"],
    )
    config = preset(job["preset"], job["vocab_size"], job["vocab_size"])
    config = dataclasses.replace(
        config, **job["sizes"], dropout_rate=job["dropout"], pad_id=job["pad_id"]
    )
    precision = PRECISIONS[job["precision"]]
    model = build_model(config, precision)
    schedule = NoamSchedule(config.d_model)
    training = TrainingConfig(precision=precision, batch_parts=num_parts)
    compile_model(model, training, schedule)
    if not job["metrics"]:
        loss = [TokenLoss(training.label_smoothing, pad_id=job["pad_id"])]
        model.compile(model.optimizer, model.loss, metrics=loss, auto_scale_loss=False)
        model.train_step = TrainingStep(model, loss, num_parts)

    clock = StepClock()
    with plain_graphs():
        model.fit(
            batches.dataset(),
            steps_per_epoch=job["num_batches"],
            epochs=1,
            shuffle=False,
            verbose=0,
            callbacks=[clock],
        )
    seen = load_batches(job["folder"], job["num_batches"])
    return {
        "first_step": clock.moments[0] - STARTED,
        "seconds": [
            after - before
            for before, after in zip(clock.moments[:-1], clock.moments[1:], strict=True)
        ],
        "tokens": target_tokens(seen, job["pad_id"])[1:],
        "loss": clock.loss,
        "parameters": model.count_params(),
    }


if __name__ == "__main__":
    engine.finish(train(engine.job()))
