"""Tokenized text on disk, written once and read by every engine.

As a script, this file writes `text.npz` with all sentences, from which our engine makes batches,
and `batches.npz` with the first of the same batches, for engines without our package. Marian reads
the sentences themselves, `source.txt`, `target.txt` and `vocab.spm`.
"""

import itertools
import pathlib
from typing import Any

import engine
import numpy as np


def load_text(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrays of a `TokenizedText`: ids and offsets."""
    with np.load(pathlib.Path(folder) / "text.npz") as arrays:
        return arrays["ids"], arrays["offsets"]


def load_batches(folder: str, number: int) -> list[tuple[np.ndarray, ...]]:
    """Return the first batches of a training as (source_ids, target_ids, labels), in order."""
    parts = ("source_ids", "target_ids", "labels")
    with np.load(pathlib.Path(folder) / "batches.npz") as arrays:
        return [tuple(arrays[f"{part}_{index}"] for part in parts) for index in range(number)]


def target_tokens(batches: list[tuple[np.ndarray, ...]], pad_id: int) -> list[int]:
    """Return the number of tokens to predict in each batch, with end ids and without padding."""
    return [int((labels != pad_id).sum()) for _, _, labels in batches]


def tokenize(job: dict[str, Any]) -> dict[str, Any]:
    """Train a joint tokenizer and write text and batches to `job["folder"]`."""
    from tf_transformer.data.corpus import default_vocab_size
    from tf_transformer.data.phrasebook import phrasebook
    from tf_transformer.data.text import read_parallel
    from tf_transformer.data.token_batches import TokenBatches
    from tf_transformer.data.tokenized_text import TokenizedText
    from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

    if job["source"]:
        parallel = read_parallel(job["source"], job["target"])
    else:
        parallel = phrasebook().train
    corpus = "text" if job["source"] else "phrasebook"
    tokenizer = SentencePieceTokenizer.train(
        [*parallel.sources, *parallel.targets],
        job["vocab_size"] or default_vocab_size(corpus, len(parallel)),
    )
    text = TokenizedText.build(parallel, [tokenizer] * 2, job["max_length"])
    ids = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    batches = TokenBatches(text, job["batch_tokens"], **ids, seed=job["seed"])

    folder = pathlib.Path(job["folder"])
    for side, sentences in (("source", parallel.sources), ("target", parallel.targets)):
        (folder / f"{side}.txt").write_text("".join(f"{s}\n" for s in sentences), "utf-8")
    tokenizer.save(folder / "vocab.spm")
    np.savez(folder / "text.npz", ids=text.ids, offsets=text.offsets)
    arrays = {}
    stream = (batch for epoch in itertools.count() for batch in batches.batch_indices(epoch))
    for index, indices in enumerate(itertools.islice(stream, job["num_batches"])):
        inputs, labels = batches.batch(indices)
        arrays[f"source_ids_{index}"] = inputs["source_ids"]
        arrays[f"target_ids_{index}"] = inputs["target_ids"]
        arrays[f"labels_{index}"] = labels
    np.savez(folder / "batches.npz", **arrays)
    return {
        **ids,
        "vocab_size": tokenizer.vocab_size,
        "padding_fraction": batches.padding_fraction,
        "num_pairs": len(text),
        "batches_in_epoch": len(batches),
    }


if __name__ == "__main__":
    engine.finish(tokenize(engine.job()))
