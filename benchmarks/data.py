"""Measure memory and time from text files of millions of pairs to token batches.

The script joins random sentences of the phrasebook and writes this text as gzip shards. Separate
processes train the tokenizer, tokenize the text into a cache, read the cache, and tokenize the text
into memory. Times are CPU seconds of all threads, so rates are those of one core; but
`prepare_seconds` are those of a clock, for `tf-transformer train --prepare` on all cores. Then a
thread and a process make noise, while the main thread wakes up each millisecond: it is late where
it waits for Python's lock, as training on a GPU would. The last line of the output is JSON.
"""

import argparse
import gzip
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import engine

SENTENCES = 20_000  # number of phrasebook sentences to join


def write_shards(job: dict[str, Any]) -> dict[str, Any]:
    """Write `job["pairs"]` pairs into `job["shards"]` pairs of files."""
    from tf_transformer.data.phrasebook import phrasebook

    sentences = list(phrasebook(num_train=SENTENCES).train)
    generator, folder = random.Random(0), pathlib.Path(job["folder"])
    for shard in range(job["shards"]):
        first, last = (job["pairs"] * n // job["shards"] for n in (shard, shard + 1))
        with (
            gzip.open(folder / f"train.{shard}.de.gz", "wt", 1, encoding="utf-8") as source,
            gzip.open(folder / f"train.{shard}.en.gz", "wt", 1, encoding="utf-8") as target,
        ):
            for _ in range(first, last):
                joined = generator.choices(sentences, k=generator.randint(1, 4))
                source.write(" ".join(de for de, _ in joined) + "\n")
                target.write(" ".join(en for _, en in joined) + "\n")
    return {}


def train_tokenizer(job: dict[str, Any]) -> dict[str, Any]:
    """Read the shards for the first time and train a joint tokenizer on them."""
    from tf_transformer.data.marks import Marks
    from tf_transformer.data.text_files import TextFiles
    from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

    started = time.process_time()
    text = TextFiles(*job["files"])
    checked = time.process_time()
    sentences = itertools.chain.from_iterable(text)
    marks = Marks(16).symbols.all
    tokenizer = SentencePieceTokenizer.train(sentences, job["vocab_size"], user_symbols=marks)
    tokenizer.save(job["model"])
    return {
        "checked_pairs_per_second": round(len(text) / (checked - started)),
        "tokenizer_seconds": round(time.process_time() - checked, 1),
    }


def make_batches(job: dict[str, Any]) -> dict[str, Any]:
    """Make batches of the files as `tf-transformer train` does."""
    from tf_transformer.data.text_files import TextFiles
    from tf_transformer.data.token_batches import TokenBatches
    from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

    tokenizer = SentencePieceTokenizer.load(job["model"])
    at_start = anonymous_mib()
    text = TextFiles(*job["files"])
    started = time.process_time()
    batches = TokenBatches.from_text(
        text, tokenizer, tokenizer, seed=0, cache_dir=job["cache"], batch_tokens=4096
    )
    ready = time.process_time()
    stream = batches.dataset().take(1 + job["batches"]).as_numpy_iterator()
    next(stream)  # waits until the epoch is shuffled
    shuffled = time.process_time()
    for _ in stream:
        pass
    return {
        "pairs_per_second": round(len(text) / (ready - started)),
        "order_seconds": round(shuffled - ready, 2),
        "batches_per_second": round(job["batches"] / (time.process_time() - shuffled)),
        "padding_fraction": round(batches.padding_fraction, 4),
        "anonymous_mib_more": anonymous_mib() - at_start,
    }


def make_noise(job: dict[str, Any]) -> dict[str, Any]:
    """Make the noise of two epochs; for the second, see how late the main thread wakes up."""
    from tf_transformer.data.marks import Marks
    from tf_transformer.data.text import ParallelText
    from tf_transformer.data.text_files import TextFiles
    from tf_transformer.data.token_batches import TokenBatches
    from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

    tokenizer = SentencePieceTokenizer.load(job["model"])
    pairs = itertools.islice(TextFiles(*job["files"]), job["noisy_pairs"])
    text = ParallelText(*map(tuple, zip(*pairs, strict=True)))
    batches = TokenBatches.from_text(
        text, tokenizer, tokenizer, seed=0, source_noise=0.1, marks=Marks(16), mark_practice=0.05,
        in_process=job["in_process"],
    )  # fmt: skip
    batches.batch_indices(0)  # the noise of epoch 1 begins with its end
    late, started, cpu = [], time.perf_counter(), time.process_time()
    second = threading.Thread(target=batches.batch_indices, args=[1])
    second.start()
    while second.is_alive():
        before = time.perf_counter()
        time.sleep(0.001)
        late.append(time.perf_counter() - before - 0.001)
    late, seconds = sorted(late), time.perf_counter() - started
    return {
        "pairs_per_second": round(len(text) / seconds),
        "cpu_seconds_of_training": round(time.process_time() - cpu, 1),
        "late_ms": round(1000 * sum(late) / len(late), 2),
        "late_ms_of_1_percent": round(1000 * late[-len(late) // 100], 2),
    }


def prepare(job: dict[str, Any]) -> float:
    """Return the seconds until a run is prepared by the command."""
    (source, target), run = job["files"], f"{job['folder']}/run"
    command = [sys.executable, "-m", "tf_transformer.cli", "train"]
    options = ["--run-dir", run, "--train-source", source, "--train-target", target, "--prepare"]
    started = time.perf_counter()
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - started, 1)


def anonymous_mib() -> int:
    """Return the MiB of this process that no file backs, which cannot be reclaimed."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) // 1024


TASKS = {t.__name__: t for t in (write_shards, train_tokenizer, make_batches, make_noise)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3_000_000)
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--batches", type=int, default=2000, help="batches to make in each case")
    parser.add_argument("--noisy-pairs", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = {
            **vars(options), "folder": folder, "model": f"{folder}/joint.model",
            "files": [f"{folder}/train.*.{side}.gz" for side in ("de", "en")],
        }  # fmt: skip

        def run(task: Callable, cache: str | None = None, **others: Any) -> dict[str, Any]:
            return engine.run("data.py", {**job, "task": task.__name__, "cache": cache, **others})

        run(write_shards)
        results = {
            "pairs": options.pairs,
            "prepare_seconds": prepare(job),
            "tokenizer": run(train_tokenizer),
            "cache_written": run(make_batches, f"{folder}/cache"),
            "cache_found": run(make_batches, f"{folder}/cache"),
            "in_memory": run(make_batches),
            "noise_in_a_thread": run(make_noise, in_process=False),
            "noise_in_a_process": run(make_noise, in_process=True),
        }
        ids = sum(path.stat().st_size for path in pathlib.Path(folder).glob("cache/*/*"))
        results["cache_bytes_per_pair"] = round(ids / options.pairs, 1)
    print(json.dumps(results))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        engine.finish(TASKS[engine.job()["task"]](engine.job()))
    else:
        main()
