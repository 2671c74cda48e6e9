"""Measure training on a CPU: our Transformer against PyTorch's `nn.Transformer` and others.

All train models of the same sizes on the same tokenized batches in the same order. Each runs in
its own process, and they take turns. See README.md beside this file. The last line of the output is
JSON.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from typing import Any

import engine
from sizes import add_size_options, sizes_of
from spread import fields, ratio

# name: script, and the keys of its job that differ
ENGINES = {
    "ours": ("train_ours.py", {"metrics": True}),
    "ours_no_metrics": ("train_ours.py", {"metrics": False}),
    "pytorch": ("train_pytorch.py", {"dropout_everywhere": False, "compile": False}),
    "pytorch_default_dropout": (
        "train_pytorch.py", {"dropout_everywhere": True, "compile": False},
    ),
    "pytorch_compiled": ("train_pytorch.py", {"dropout_everywhere": False, "compile": True}),
}  # fmt: skip
PEERS = {"marian": "train_marian.py", "opennmt": "train_opennmt.py"}  # only in float32
DEFAULT_ENGINES = ("ours", "pytorch", "ours_no_metrics", "pytorch_default_dropout")
# preset: (warm-up, measured steps). A step of base takes about 20 seconds on a core.
STEPS = {"tiny": (8, 40), "small": (8, 40), "base": (2, 6), "big": (1, 3)}
PRECISIONS = ("float32", "bfloat16")


def main() -> None:
    options = parse()
    needs_torch = any("pytorch" in engine for engine in options.engines)
    if needs_torch and importlib.util.find_spec("torch") is None:
        sys.exit("PyTorch is not installed: pip install -r requirements-benchmarks.txt")
    steps = {
        name: (options.warm_up or STEPS[name][0], options.steps or STEPS[name][1])
        for name in options.presets
    }
    with tempfile.TemporaryDirectory() as folder:
        job = {
            **vars(options),
            "folder": folder,
            "num_batches": max(map(sum, steps.values())),
            "seed": 0,
        }
        say(f"tokenizing {options.source or 'the built-in phrasebook'}")
        data = engine.run("tokenized_text.py", job)
        results = {}
        for preset in options.presets:
            results[preset] = measure_preset(preset, steps[preset], {**job, **data}, options)
    print_table(results, data, options)
    print(json.dumps(results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", choices=STEPS, default=["tiny", "base"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=DEFAULT_ENGINES)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine")
    parser.add_argument(
        "--steps", type=int, help="measured steps in a round; default: 40 for tiny, 6 for base"
    )
    parser.add_argument(
        "--warm-up", type=int, help="unmeasured steps before them; default: 8 for tiny, 2 for base"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--source", help="source sentences, one a line, plain or gzip")
    parser.add_argument("--target", help="their translations; default of both: the phrasebook")
    parser.add_argument(
        "--vocab-size", type=int, help="subwords; default: 8000, for the phrasebook 2000"
    )
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.1)
    add_size_options(parser)
    engine.add_peers(parser, PEERS)
    options = parser.parse_args()
    if (options.source is None) != (options.target is None):
        parser.error("give both --source and --target, or neither")
    return options


def measure_preset(
    preset: str, steps: tuple[int, int], job: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the results of float32, and those of other precisions under their names."""
    warm_up, measured = steps
    job = {
        **job,
        "preset": preset,
        "sizes": sizes_of(preset, options),
        "num_batches": warm_up + measured,
    }
    cells = {
        precision: measure_cell({**job, "precision": precision}, warm_up, options)
        for precision in options.precisions
    }
    return {
        "padding_fraction": round(job["padding_fraction"], 4),
        **cells.pop("float32", {}),
        **cells,
    }


def measure_cell(job: dict[str, Any], warm_up: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run all engines in turns and return medians over the rounds."""
    runs = {name: (*ENGINES[name], sys.executable) for name in options.engines}
    if job["precision"] == "float32":
        peers = engine.peers(options, PEERS)
        runs |= {name: (PEERS[name], {}, python) for name, python in peers.items()}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for number in range(options.rounds):
        for name, (script, others, python) in runs.items():
            result = engine.run(script, {**job, **others}, python=python)
            rounds[name].append(measurements(result, warm_up))
            say(
                f"{job['preset']} {job['precision']} round {number + 1} {name}: "
                f"{rounds[name][-1]['tokens_per_second']:,.0f} tokens/s, loss {result['loss']:.3f}"
            )
    cell: dict[str, Any] = {name: median_over(rounds[name], "tokens_per_second") for name in runs}
    if "ours" in cell and "pytorch" in cell:
        speeds = ([r["tokens_per_second"] for r in rounds[name]] for name in ("ours", "pytorch"))
        cell |= fields({"ratio": ratio(*speeds)})
    for key in ("overall_tokens_per_second", "first_step_seconds", "peak_mib", "parameters"):
        cell[key] = {name: median_over(rounds[name], key) for name in runs}
    return cell


def measurements(result: dict[str, Any], warm_up: int) -> dict[str, float]:
    """Return what one run of an engine measured, without the steps of the warm-up.

    `seconds` and `tokens` lack the first step, which belongs to the warm-up.
    """
    seconds, tokens = result["seconds"][warm_up - 1 :], result["tokens"][warm_up - 1 :]
    return {
        "tokens_per_second": statistics.median(
            count / time for count, time in zip(tokens, seconds, strict=True)
        ),
        "overall_tokens_per_second": sum(tokens) / sum(seconds),
        "first_step_seconds": result["first_step"],
        "peak_mib": result["peak_mib"],
        "parameters": result["parameters"],
    }


def median_over(rounds: list[dict[str, float]], key: str) -> float:
    return round(statistics.median(one[key] for one in rounds), 1)


def print_table(results: dict[str, Any], data: dict[str, Any], options: argparse.Namespace) -> None:
    print(
        f"{data['num_pairs']:,} pairs, vocabulary {data['vocab_size']:,}, batches of "
        f"{options.batch_tokens:,} tokens, {data['padding_fraction']:.1%} padding, "
        f"{options.threads} threads, {options.rounds} rounds"
    )
    columns = "{:<7} {:<9} {:<24} {:>9} {:>9} {:>11} {:>10}"
    print(
        columns.format("preset", "precision", "engine", "tokens/s", "overall", "first step", "peak")
    )
    for preset, result in results.items():
        for precision in options.precisions:
            cell = result if precision == "float32" else result[precision]
            for name in cell["parameters"]:
                print(
                    columns.format(
                        preset,
                        precision,
                        name,
                        f"{cell[name]:,.0f}",
                        f"{cell['overall_tokens_per_second'][name]:,.0f}",
                        f"{cell['first_step_seconds'][name]:.1f} s",
                        f"{cell['peak_mib'][name]:,.0f} MiB",
                    )
                )
            if "ratio" in cell:
                found = f"{cell['ratio'] or 'not resolved'}, spread {cell['ratio_spread']}"
                print(f"{preset:<7} {precision:<9} ours / pytorch: {found}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
