"""Train with OpenNMT-tf's trainer, in an interpreter that has it and nothing of ours."""

import time

STARTED = time.monotonic()

import itertools  # noqa: E402
import pathlib  # noqa: E402
from typing import Any  # noqa: E402

import engine  # noqa: E402
import opennmt  # noqa: E402
import tensorflow as tf  # noqa: E402
from decode_opennmt import transformer  # noqa: E402
from tokenized_text import load_batches, target_tokens  # noqa: E402


class Batches:
    """Batches for the trainer, and the moments when it asked for the next one.

    Args:
        arrays: Of each batch `(source_ids, target_ids, labels)`.
        pad_id: Padding, which comes last.
    """

    def __init__(self, arrays: list[tuple], pad_id: int) -> None:
        self.batches = [
            (features(source, pad_id), {**features(target, pad_id), "ids_out": tf.constant(labels)})
            for source, target, labels in arrays
        ]
        self.moments: list[float] = []
        self.element_spec = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec([None] * tensor.shape.rank, tensor.dtype), self.batches[0]
        )

    def __iter__(self):
        for batch in self.batches:
            yield batch
            self.moments.append(time.monotonic())


def features(ids: Any, pad_id: int) -> dict[str, tf.Tensor]:
    """Return what the trainer wants to know of a side; it counts unknown words, by `tokens`."""
    lengths = (ids != pad_id).sum(axis=1)
    return {
        "ids": tf.constant(ids),
        "length": tf.constant(lengths, tf.int32),
        "tokens": tf.fill(ids.shape, ""),
    }


def train(job: dict[str, Any]) -> dict[str, Any]:
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])
    tf.random.set_seed(job["seed"])
    model = transformer(
        job["sizes"], dropout=job["dropout"], attention_dropout=0.0, ffn_dropout=0.0
    )
    # It gets ids, so only the number of words matters; it adds one for unknown words.
    vocabulary = pathlib.Path(job["folder"]) / "opennmt.vocab"
    vocabulary.write_text("".join(f"{number}\n" for number in range(job["vocab_size"] - 1)))
    model.initialize(
        {"source_vocabulary": str(vocabulary), "target_vocabulary": str(vocabulary)},
        model.auto_config()["params"],
    )
    optimizer = model.get_optimizer()
    model.create_variables(optimizer)
    arrays = load_batches(job["folder"], job["num_batches"])
    batches = Batches(arrays, job["pad_id"])
    result = opennmt.training.Trainer(model, optimizer)(batches, save_steps=None, eval_steps=None)
    moments = batches.moments
    return {
        "first_step": moments[0] - STARTED,
        "seconds": [after - before for before, after in itertools.pairwise(moments)],
        "tokens": target_tokens(arrays, job["pad_id"])[1:],
        "loss": float(result["last_loss"]),
        "parameters": int(model.count_params()),
    }


if __name__ == "__main__":
    engine.finish(train(engine.job()))
