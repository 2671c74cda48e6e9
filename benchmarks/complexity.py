"""Measure the processor time of one layer against the length of its sequence.

In table 1 of Vaswani et al. 2017, the complexity of self-attention is n²·d, of recurrence n·d², of
convolution k·n·d² and of restricted self-attention r·n·d. The layers and lengths take turns with a
forward pass of one sequence, in one thread. The last line of the output is JSON.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence

import numpy as np
from figures import save_lines
from spread import Estimate, estimate, fields

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
    seconds = measure(options)
    times = {
        kind: [1000 * statistics.median(of_length) for of_length in zip(*rounds, strict=True)]
        for kind, rounds in seconds.items()
    }
    growth = {kind: exponent(rounds) for kind, rounds in seconds.items()}
    print("| layer | complexity |", " | ".join(f"n = {n}" for n in LENGTHS), "| e of n^e |")
    print("|---|---|" + "---|" * (len(LENGTHS) + 1))
    for kind, of_lengths in times.items():
        cells = " | ".join(f"{ms:.2f}" for ms in of_lengths)
        print(f"| {kind} | {COMPLEXITY[kind]} | {cells} | {growth[kind]} |")
    if options.figure:
        lines = {
            f"{kind}, {COMPLEXITY[kind]}": list(zip(LENGTHS, ms, strict=True))
            for kind, ms in times.items()
        }
        labels = ("tokens in the sequence", "milliseconds of processor time")
        save_lines(lines, labels, options.figure, logarithmic=True)
    results = {k: {"ms": ms, **fields({"exponent": growth[k]})} for k, ms in times.items()}
    print(json.dumps(results))


def measure(options: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Return the processor seconds of each kind of layer, for each round and length."""
    import keras
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
    random = np.random.default_rng(0)
    inputs = [
        tf.constant(random.normal(size=(1, length, options.width)), "float32") for length in LENGTHS
    ]
    jobs = [
        (tf.function(layer, autograph=False), kind, number)
        for kind, layer in layers.items()
        for number in range(len(LENGTHS))
    ]
    found = {kind: [[0.0] * len(LENGTHS) for _ in range(1 + options.rounds)] for kind in layers}
    for of_round in range(1 + options.rounds):  # the first traces
        for index in random.permutation(len(jobs)):
            call, kind, number = jobs[index]
            began = time.process_time()
            call(inputs[number]).numpy()
            found[kind][of_round][number] = time.process_time() - began
    return {kind: rounds[1:] for kind, rounds in found.items()}


def exponent(seconds: Sequence[Sequence[float]]) -> Estimate:
    """Return e such that the time grows like n^e over the three longest lengths."""
    return estimate(
        lambda rounds: np.polyfit(np.log(LENGTHS[-3:]), np.log(np.median(rounds, axis=0)), 1)[0],
        np.array(seconds)[:, -3:],
    )


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
