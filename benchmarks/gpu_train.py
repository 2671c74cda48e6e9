"""Measure training on one GPU: our Keras layers on JAX against PyTorch's `nn.Transformer`.

TensorFlow is not needed. Both train models of the same sizes on the same synthetic batches in
bfloat16, each in its own process. See README.md beside this file. The last line of the output is
JSON.
"""

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import sys
from typing import Any

import engine
from sizes import PRESETS, add_size_options, sizes_of
from spread import fields, ratio
from synthetic_batches import PAD_ID, synthetic_batches, training_flops

ENGINES = {"ours": ("gpu_keras.py", "jax"), "pytorch": ("gpu_pytorch.py", "torch")}


def main() -> None:
    options = parse()
    for name in options.engines:
        library = ENGINES[name][1]
        if importlib.util.find_spec(library) is None:
            sys.exit(
                f"{library} is not installed: pip install {library}, or choose other --engines"
            )
    results = {}
    for preset in options.presets:
        job = {**vars(options), "preset": preset, "sizes": sizes_of(preset, options), "seed": 0}
        results[preset] = measure_preset(job, options)
    print_table(results, options)
    print(json.dumps(results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=["base", "big"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=[*ENGINES])
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--peak-tflops", type=float, help="the chip's dense bfloat16 peak")
    parser.add_argument("--blocks", type=int, default=5, help="blocks of steps; the median counts")
    parser.add_argument("--steps", type=int, default=30, help="steps in a block")
    parser.add_argument(
        "--batch-tokens", type=int, default=32768, help="tokens on each side, padding included"
    )
    parser.add_argument("--vocab-size", type=int, default=32768)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use torch.compile; switch it off only for tests on machines without a compiler",
    )
    add_size_options(parser)
    return parser.parse_args()


def measure_preset(job: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Run each engine once and return its medians over the blocks."""
    batches = synthetic_batches(job)
    sizes = {name: job["sizes"][name] for name in ("num_layers", "d_model", "d_ff")}
    in_block = [*itertools.islice(itertools.cycle(batches), job["steps"])]
    tokens = sum(int((labels != PAD_ID).sum()) for _, _, labels in in_block)
    flops = sum(training_flops(batch, job["vocab_size"], **sizes) for batch in in_block)

    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    if options.device == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
    cell: dict[str, Any] = {}
    blocks: dict[str, list[float]] = {}
    for name in options.engines:
        result = engine.run(ENGINES[name][0], job, environment)
        blocks[name] = result["block_seconds"]
        seconds = statistics.median(blocks[name])
        cell[name] = round(tokens / seconds, 1)
        tflops = flops / seconds / 1e12
        measured = {
            "tflops": round(tflops, 6),
            "share_of_peak": options.peak_tflops and round(tflops / options.peak_tflops, 4),
            "first_step_seconds": round(result["first_step"], 1),
            "parameters": result["parameters"],
            "loss": round(result["losses"][-1], 3),
            "device": result["device"],
        }
        for key, value in measured.items():
            cell.setdefault(key, {})[name] = value
        print(f"{job['preset']} {name}: {cell[name]:,.0f} tokens/s", file=sys.stderr, flush=True)
    if {"ours", "pytorch"} <= cell.keys():
        cell |= fields({"ratio": ratio(blocks["pytorch"], blocks["ours"])})
    return cell


def print_table(results: dict[str, Any], options: argparse.Namespace) -> None:
    print(
        f"batches of {options.batch_tokens:,} tokens, vocabulary {options.vocab_size:,}, "
        f"bfloat16, {options.blocks} blocks of {options.steps} steps"
    )
    columns = "{:<7} {:<8} {:>10} {:>9} {:>7} {:>11}"
    print(columns.format("preset", "engine", "tokens/s", "TFLOP/s", "peak", "first step"))
    for preset, cell in results.items():
        for name in options.engines:
            share = cell["share_of_peak"][name]
            print(
                columns.format(
                    preset,
                    name,
                    f"{cell[name]:,.0f}",
                    f"{cell['tflops'][name]:,.2f}",
                    "" if share is None else f"{share:.1%}",
                    f"{cell['first_step_seconds'][name]:.1f} s",
                )
            )
        if "ratio" in cell:
            found = f"{cell['ratio'] or 'not resolved'}, spread {cell['ratio_spread']}"
            print(f"{preset:<7} ours / pytorch: {found}")


if __name__ == "__main__":
    main()
