"""Train with Marian, in an interpreter that has pymarian and NumPy and nothing of ours.

Marian makes batches of about the same number of target tokens from the same text. Each thread
computes the gradients of its share of a batch.
"""

import pathlib
import re
import resource
import subprocess
import sys
from typing import Any

import engine
import numpy as np

UPDATE = re.compile(r"Cost ([\d.]+) .* @ ([\d,]+) after .* Time ([\d.]+)s")


def train(job: dict[str, Any]) -> dict[str, Any]:
    folder, sizes = pathlib.Path(job["folder"]), job["sizes"]
    model, log = folder / "marian.npz", folder / "marian.log"
    for old in folder.glob("marian.*"):
        old.unlink()
    options = {
        "type": "transformer",
        "model": model,
        "train-sets": f"{folder}/source.txt {folder}/target.txt",
        "vocabs": f"{folder}/vocab.spm {folder}/vocab.spm",
        "enc-depth": sizes["num_layers"],
        "dec-depth": sizes["num_layers"],
        "dim-emb": sizes["d_model"],
        "transformer-dim-ffn": sizes["d_ff"],
        "transformer-heads": sizes["num_heads"],
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": "n",
        "transformer-postprocess": "da",
        "transformer-postprocess-top": "n",
        "transformer-dropout": job["dropout"],
        "tied-embeddings-all": "true",
        "label-smoothing": 0.1,
        "optimizer-params": "0.9 0.98 1e-9",
        "lr-warmup": 4000,
        "clip-norm": 0,
        "max-length": job["max_length"],
        "mini-batch-words": job["batch_tokens"],
        "sync-sgd": "true",
        "cpu-threads": job["threads"],
        "seed": job["seed"] + 1,
        "after-batches": job["num_batches"],
        "disp-freq": 1,
        "log": log,
    }
    words = [word for k, v in options.items() for word in (f"--{k}", *str(v).split())]
    # Marian ends its process after a training, so it needs another.
    run = "import _pymarian, sys; _pymarian.main(sys.argv[1:])"
    subprocess.run([sys.executable, "-c", run, "train", *words], check=True)
    updates = UPDATE.findall(log.read_text())
    seconds = [float(time) for _, _, time in updates]
    with np.load(model) as arrays:
        weights = [arrays[name] for name in arrays if not name.startswith("special")]
    return {
        "first_step": seconds[0],
        "seconds": seconds[1:],
        "tokens": [int(tokens.replace(",", "")) for _, tokens, _ in updates[1:]],
        "loss": float(updates[-1][0]),
        "parameters": sum(array.size for array in weights),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
    }


if __name__ == "__main__":
    engine.finish(train(engine.job()))
