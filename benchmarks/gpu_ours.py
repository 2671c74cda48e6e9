"""Train or decode on one device as the product does; `gpu.py` runs this in its own process."""

import time

STARTED = time.monotonic()

from tf_transformer.machine import plain_graphs, prepare_command  # noqa: E402

prepare_command()

import itertools  # noqa: E402
import statistics  # noqa: E402
from typing import Any  # noqa: E402

import engine  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from synthetic_batches import FIRST_ID, PAD_ID, training_flops  # noqa: E402

import tf_transformer as tt  # noqa: E402
from tf_transformer.data.phrasebook import phrasebook  # noqa: E402
from tf_transformer.data.token_batches import TokenBatches  # noqa: E402
from tf_transformer.data.tokenized_text import TokenizedText  # noqa: E402
from tf_transformer.models.architectures import build_model, with_tokenizers  # noqa: E402
from tf_transformer.run_tables import TrainingConfig  # noqa: E402
from tf_transformer.runs.compilation import compile_model  # noqa: E402
from tf_transformer.training.schedules import NoamSchedule  # noqa: E402

BOS_ID, EOS_ID = 2, 3
SAMPLE = 2000  # pairs from which the operations of a token are counted


def synthetic_text(job: dict[str, Any]) -> TokenizedText:
    """Return pairs of random ids with the lengths of usual text, 25 tokens in the mean."""
    random = np.random.default_rng(0)
    number = max(SAMPLE, 20 * job["batch_tokens"] // 25)
    targets = random.lognormal(3.05, 0.6, number)
    sources = targets * random.lognormal(0.0, 0.2, number)
    lengths = np.clip(np.stack([sources, targets], axis=1), 1, 127).astype(int).reshape(-1)
    ids = random.integers(FIRST_ID, job["vocab_size"], lengths.sum()).astype(np.uint16)
    return TokenizedText(ids, np.insert(np.cumsum(lengths), 0, 0))


def flops_per_token(text: TokenizedText, job: dict[str, Any]) -> float:
    """Return the operations of training a target token, as `training_flops` counts them."""
    pairs = np.arange(SAMPLE)
    source, target = (text.padded(2 * pairs + side, PAD_ID, EOS_ID)[0] for side in (0, 1))
    sizes = {name: job["sizes"][name] for name in ("num_layers", "d_model", "d_ff")}
    flops = training_flops((source, target, target), job["vocab_size"], **sizes)
    return flops / int((target != PAD_ID).sum())


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Train for `updates` updates after the first ones; return the speed and the memory."""
    text = synthetic_text(job)
    batches = TokenBatches(
        text, job["batch_tokens"], pad_id=PAD_ID, bos_id=BOS_ID, eos_id=EOS_ID, seed=0,
        row_length=job["row_length"],
    )  # fmt: skip
    config = tt.TransformerConfig(job["vocab_size"], job["vocab_size"], **job["sizes"])
    model = build_model(config, job["precision"])
    training = TrainingConfig(precision=job["precision"], xla=job["xla"], clip_norm=1.0)
    compile_model(model, training, NoamSchedule(config.d_model))
    together, moments, losses = job["steps_per_execution"], [], []
    model.train_step.run_together(together)

    def note(batch: int, logs: dict[str, Any]) -> None:
        moments.append(time.monotonic())
        losses.append(logs["loss"])

    calls = 3 + -(-job["updates"] // together)  # the first ones trace, compile and tune
    clock = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    with plain_graphs():
        model.fit(
            batches.dataset(), steps_per_epoch=calls, shuffle=False, verbose=0, callbacks=[clock]
        )  # fmt: skip
    seconds = [(b - a) / together for a, b in itertools.pairwise(moments[2:])]
    tokens = batches.num_target_tokens / len(batches) / statistics.median(seconds)
    return {
        "tokens_per_second": round(tokens), "flops": tokens * flops_per_token(text, job),
        "first_update_seconds": round(moments[0] - STARTED, 1),
        "milliseconds": round(1000 * statistics.median(seconds), 2),
        "padding": round(batches.padding_fraction, 3), "loss": round(losses[-1], 4),
        **on_device(),
    }  # fmt: skip


def decode(job: dict[str, Any]) -> dict[str, Any]:
    """Translate with random weights, of which every translation has as many tokens as it may."""
    sentences = [*phrasebook().train.sources]
    tokenizer = tt.SentencePieceTokenizer.train(sentences, 4000)
    config = tt.TransformerConfig(1, 1, **job["sizes"])
    model = build_model(with_tokenizers(config, tokenizer, tokenizer), job["precision"])
    search = tt.Search(
        max_length=job["tokens"], beam_size=job["beam_size"], repair_loops=False,
        by_sentence=False, max_length_ratio=9.0,
    )  # fmt: skip
    translator = tt.Translator.from_model(model, tokenizer, tokenizer, search)
    times = {}
    for size in job["batch_sizes"]:
        lines = [sentences[n % len(sentences)] for n in range(size)]
        seconds = []
        for _ in range(job["rounds"] + 2):
            started = time.monotonic()
            translator(lines, batch_size=size)
            seconds.append(time.monotonic() - started)
        times[size] = round(1000 * statistics.median(seconds[2:]), 2)
    return {"milliseconds": times, **on_device()}


def on_device() -> dict[str, Any]:
    """Return the name of the device, and the peak of its memory."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return {"device": "CPU"}
    details = tf.config.experimental.get_device_details(gpus[0])
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
    return {"device": details.get("device_name", "GPU"), "peak_mib": round(peak)}


if __name__ == "__main__":
    given = engine.job()
    keras.utils.set_random_seed(0)
    engine.finish(train(given) if given["kind"] == "train" else decode(given))
