"""Measure the time of one layer against the length of its sequence.

In table 1 of Vaswani et al. 2017, the complexity of self-attention is n²·d, of recurrence n·d², of
convolution k·n·d² and of restricted self-attention r·n·d. The layers take turns with a forward pass
of one sequence, in one thread. The last line of the output is JSON.
"""

import argparse
import json
import math
import os
import statistics
import time

from figures import save_lines

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
COMPLEXITY = {
    "self-attention": "n²·d",
    "recurrence": "n·d²",
    "convolution": "k·n·d²",
    "restricted": "r·n·d",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128, help="d, width of the layers")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kernel", type=int, default=3, help="k, width of the convolution")
    parser.add_argument("--radius", type=int, default=32, help="r, radius of attention")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--figure", help="draw the times into this file")
    options = parser.parse_args()
    times = measure(options)
    results = {kind: {"ms": ms, "exponent": exponent(ms)} for kind, ms in times.items()}
    print("| layer | complexity |", " | ".join(f"n = {n}" for n in LENGTHS), "| growth |")
    print("|---|---|" + "---|" * (len(LENGTHS) + 1))
    for kind, result in results.items():
        cells = " | ".join(f"{ms:.2f}" for ms in result["ms"])
        print(f"| {kind} | {COMPLEXITY[kind]} | {cells} | n^{result['exponent']:.1f} |")
    if options.figure:
        lines = {
            f"{kind}, {COMPLEXITY[kind]}": list(zip(LENGTHS, ms, strict=True))
            for kind, ms in times.items()
        }
        labels = ("tokens in the sequence", "milliseconds for the sequence")
        save_lines(lines, labels, options.figure, logarithmic=True)
    print(json.dumps(results))


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the median milliseconds of each kind of layer for each length."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tf_transformer import GlobalSelfAttention, RestrictedSelfAttention

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    layers = {
        "self-attention": GlobalSelfAttention(options.heads, options.width),
        "recurrence": keras.layers.LSTM(options.width, return_sequences=True),
        "convolution": keras.layers.Conv1D(options.width, options.kernel, padding="same"),
        "restricted": RestrictedSelfAttention(options.heads, options.width, options.radius),
    }
    found = {kind: [] for kind in layers}
    for length in LENGTHS:
        x = tf.constant(np.random.default_rng(0).normal(size=(1, length, options.width)), "float32")
        calls = {kind: tf.function(layer, autograph=False) for kind, layer in layers.items()}
        for call in calls.values():
            call(x)  # traces it
        seconds = {kind: [] for kind in layers}
        for _ in range(options.rounds):
            for kind, call in calls.items():
                began = time.perf_counter()
                call(x).numpy()
                seconds[kind].append(time.perf_counter() - began)
        for kind in layers:
            found[kind].append(1000 * statistics.median(seconds[kind]))
    return found


def exponent(milliseconds: list[float]) -> float:
    """Return e such that the time grows like n^e over the three longest lengths."""
    return math.log(milliseconds[-1] / milliseconds[-3]) / math.log(LENGTHS[-1] / LENGTHS[-3])


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
