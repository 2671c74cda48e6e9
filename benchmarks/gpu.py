"""Measure the product on one GPU: training in each way that the recipe knows, and decoding.

It needs no network and no text: random ids have the lengths of usual text. Each case runs in its
own process. See README.md beside this file. The last line of the output is JSON.
"""

import argparse
import json
import sys
from typing import Any

import engine
from sizes import PRESETS, add_size_options, sizes_of

# The ways to train: what the recipe chose before GPUs had one of their own, then one change each.
WAYS = {
    "float32, padded": {"precision": "float32"},
    "bfloat16, padded": {"precision": "mixed_bfloat16"},
    "bfloat16, packed": {"precision": "mixed_bfloat16", "row_length": 256},
    "and XLA": {"precision": "mixed_bfloat16", "row_length": 256, "xla": True},
    "and 10 in a call": {
        "precision": "mixed_bfloat16", "row_length": 256, "xla": True, "steps_per_execution": 10,
    },
}  # fmt: skip
DEFAULTS = {"row_length": None, "xla": False, "steps_per_execution": 1}


def main() -> None:
    options = parse()
    results: dict[str, Any] = {}
    for preset in options.presets:
        results[preset] = {"train": train(preset, options), "decode": decode(preset, options)}
    print(json.dumps(results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=["base", "big"])
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=[*WAYS], help="to train")
    parser.add_argument("--updates", type=int, default=40, help="measured updates of each way")
    parser.add_argument("--batch-tokens", type=int, default=32_768)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--peak-tflops", type=float, help="the chip's dense bfloat16 peak")
    parser.add_argument("--batch-sizes", nargs="*", type=int, default=[1, 32, 128, 1024])
    parser.add_argument("--beam-sizes", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--tokens", type=int, default=24, help="tokens of each translation")
    parser.add_argument("--rounds", type=int, default=5, help="measured calls of each batch size")
    add_size_options(parser)
    return parser.parse_args()


def train(preset: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train in each way, and print a row of the table for each."""
    columns = "{:<6} {:<18} {:>10} {:>8} {:>7} {:>9} {:>8} {:>9} {:>8}"
    heads = "tokens/s", "TFLOP/s", "of peak", "ms/update", "first", "MiB", "loss"
    print(columns.format(preset, "training", *heads))
    cells = {}
    for way in options.ways:
        job = {**vars(options), **DEFAULTS, **WAYS[way], "sizes": sizes_of(preset, options)}
        cell = cells[way] = engine.run("gpu_ours.py", {**job, "kind": "train"})
        tflops = cell.pop("flops") / 1e12
        share = "" if options.peak_tflops is None else f"{tflops / options.peak_tflops:.1%}"
        cell |= {"tflops": round(tflops, 4), "share_of_peak": share}
        print(
            columns.format(
                preset, way, f"{cell['tokens_per_second']:,}", f"{tflops:.2f}", share,
                cell["milliseconds"], f"{cell['first_update_seconds']} s", cell["peak_mib"],
                cell["loss"],
            ),
            flush=True,
        )  # fmt: skip
    return cells


def decode(preset: str, options: argparse.Namespace) -> dict[str, Any]:
    """Translate, and print the milliseconds of each batch size."""
    cells: dict[str, Any] = {}
    if not options.batch_sizes:
        return cells
    print(f"{preset}: milliseconds of a batch of {', '.join(map(str, options.batch_sizes))}")
    for precision in ("float32", "bfloat16"):
        for beam_size in options.beam_sizes:
            job = {
                **vars(options), "kind": "decode", "sizes": sizes_of(preset, options),
                "precision": precision, "beam_size": beam_size,
            }  # fmt: skip
            name = f"{precision}, beam {beam_size}"
            cell = cells[name] = engine.run("gpu_ours.py", job)
            print(f"  {name:<19}", *cell["milliseconds"].values(), flush=True)
    return cells


if __name__ == "__main__":
    sys.exit(main())
