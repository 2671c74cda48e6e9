"""Train all architectures on one corpus with one budget, and measure them.

The command line trains each architecture in its own process, with the default settings and the
recipe's choices. Finished runs are kept, so start the script again to continue or to measure again.
It refuses runs of another budget, other files or other training code. The last line of the output
is JSON, which is also in `results.json` beside the runs.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

from figures import save_lines
from texts import read_texts

import tf_transformer

# In the order of docs/lineage.md.
TRANSLATING = ("sutskever", "cho", "bahdanau", "luong", "transformer", "prefix_lm", "causal_lm")
SCORING = ("permutation_lm", "masked_lm")
# The longest source of each group, in words.
LENGTHS = (6, 9, 12, 15, 18, 22, 30, 1000)
# Fewest sentences in a group, because BLEU of fewer means little.
FEWEST = 20
# The parts of the package that decide what a run learns, and which checkpoint is its best.
OF_TRAINING = (
    "data", "decoding", "inference", "layers", "models", "runs", "tokenizers", "training",
)  # fmt: skip
FILES = ("train_source", "train_target", "validation_source", "validation_target")


def main() -> None:
    options = parse()
    folder = pathlib.Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    results, wanted = {}, made_by(options)
    for name in options.architectures:
        run_dir = folder / name
        stamp = run_dir.with_suffix(".stamp")
        known = stamp.read_text(encoding="utf-8") if stamp.exists() else ""
        if run_dir.exists() and known != wanted:
            sys.exit(
                f"{run_dir} is of another budget, other files or other code. Remove it, or give "
                f"another --output"
            )
        stamp.write_text(wanted, encoding="utf-8")
        if not (run_dir / "done").exists():
            train(name, run_dir, options)
        results[name] = measure(name, run_dir, options)
        say(f"{name}: {results[name]}")
        (folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    print_table(results)
    if options.figure:
        draw(results, options.figure)
    print(json.dumps(results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    names = (*TRANSLATING, *SCORING)
    parser.add_argument("--architectures", nargs="+", choices=names, default=names)
    parser.add_argument("--figure", help="draw BLEU by length of the source into this file")
    parser.add_argument("--output", default="build/lineage", help="folder of the runs")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="train each for this many minutes")
    budget.add_argument("--steps", type=int, help="train each for this many updates")
    for name in FILES:
        parser.add_argument(f"--{name.replace('_', '-')}", help="default: the phrasebook")
    parser.add_argument("--test-source", help="sentences to measure on; default: validation text")
    parser.add_argument("--test-target", help="their translations")
    options = parser.parse_args()
    given = [name for name in FILES if getattr(options, name)]
    if given and len(given) < len(FILES):
        parser.error(f"give all of {', '.join(FILES)}, or none for the phrasebook")
    if bool(options.test_source) != bool(options.test_target):
        parser.error("give both of --test-source and --test-target, or none")
    for path in filter(None, (options.test_source, options.test_target)):
        if not pathlib.Path(path).is_file():  # it is read after the training
            parser.error(f"no such file: {path}")
    return options


def train(name: str, run_dir: pathlib.Path, options: argparse.Namespace) -> None:
    """Train one architecture, or continue its training."""
    command = [sys.executable, "-m", "tf_transformer.cli", "train", f"--run-dir={run_dir}"]
    if (run_dir / "config.toml").exists():
        command.append("--resume")
    else:
        unit = "minutes" if options.minutes else "steps"
        command += [f"--architecture={name}", f"--{unit}={getattr(options, unit)}"]
        if options.train_source:
            command += [f"--{n.replace('_', '-')}={getattr(options, n)}" for n in FILES]
        else:
            command.append("--corpus=phrasebook")
    say(f"training {name}")
    with open(run_dir.with_suffix(".log"), "a", encoding="utf-8") as log:
        failed = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    if failed:
        sys.exit(f"training {name} failed; see {run_dir.with_suffix('.log')}")
    (run_dir / "done").touch()


def made_by(options: argparse.Namespace) -> str:
    """Return what determines the result of a training: budget, files and code."""
    package, digest = pathlib.Path(tf_transformer.__file__).parent, hashlib.sha256()
    parts = (path for part in OF_TRAINING for path in (package / part).rglob("*.py"))
    for path in (*sorted(package.glob("*.py")), *sorted(parts)):
        digest.update(path.read_bytes())
    given = {name: getattr(options, name) for name in ("minutes", "steps", *FILES)}
    return json.dumps({**given, "code": digest.hexdigest()})


def measure(name: str, run_dir: pathlib.Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the quality and the speed of one architecture."""
    import tf_transformer as tt
    from tf_transformer.data.corpus import load_validation
    from tf_transformer.runs.compilation import validate
    from tf_transformer.runs.data import batches_of
    from tf_transformer.runs.restore import restore_model, search_of
    from tf_transformer.runs.run_directory import RunDirectory

    run = RunDirectory.open(run_dir)
    lines, config = run.log(), run.config()
    model, *tokenizers, _ = restore_model(run)
    batches = batches_of(load_validation(config.data), tokenizers, config.data)
    result = {
        "parameters": model.count_params(),
        "updates": lines[-1]["step"],
        "minutes": lines[-1]["minutes"],
        "training_tokens_per_second": statistics.median(
            line["tokens_per_second"] for line in lines[1:] or lines
        ),
        "val_perplexity": validate(model, config.training, batches)["perplexity"],
    }
    if name in SCORING:
        return result
    sources, references = test_text(options)
    # A text of several sentences is one source, or no source would be long.
    search = dataclasses.replace(search_of(config.data), by_sentence=False)
    translator = tt.Translator.from_model(model, *tokenizers, search)
    beam = {"beam_size": 4, "length_penalty": 1.0}
    translator(sources[:64], **beam)  # traces the search before it is timed
    began = time.monotonic()
    translations = translator(sources, **beam)
    seconds = time.monotonic() - began
    scores = tt.corpus_score(translations, references)
    return {
        **result,
        "bleu": scores.bleu,
        "chrf": scores.chrf,
        "signature": scores.signature,
        "decoding_tokens_per_second": scores.tokens / seconds,
        "bleu_by_length": by_length(sources, translations, references),
    }


def by_length(
    sources: list[str], translations: list[str], references: list[str]
) -> list[tuple[int, int, int, float]]:
    """Return (shortest, longest, sentences, BLEU) for groups of sources by length in words.

    If there are few long sources, they join the group before them.
    """
    import tf_transformer as tt

    words = [len(source.split()) for source in sources]
    bounds = [most for most in LENGTHS if sum(count > most for count in words) >= FEWEST]
    found, least = [], 0
    for most in [*bounds, LENGTHS[-1]]:
        rows = [i for i, count in enumerate(words) if least < count <= most]
        if len(rows) >= FEWEST:
            texts = [[side[i] for i in rows] for side in (translations, references)]
            found.append((least + 1, most, len(rows), tt.corpus_score(*texts).bleu))
        least = most
    return found


def test_text(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the sentences to measure on and their translations."""
    if options.test_source:
        return read_texts(options.test_source), read_texts(options.test_target)
    if options.validation_source:
        return read_texts(options.validation_source), read_texts(options.validation_target)
    from tf_transformer import phrasebook

    text = phrasebook().test
    return list(text.sources), list(text.targets)


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """Print the results as Markdown."""
    columns = {
        "parameters": "{:,}",
        "updates": "{:,}",
        "val_perplexity": "{:.2f}",
        "bleu": "{:.2f}",
        "chrf": "{:.2f}",
        "training_tokens_per_second": "{:,.0f}",
        "decoding_tokens_per_second": "{:,.0f}",
    }
    print("| architecture |", " | ".join(columns).replace("_", " "), "|")
    print("|---|" + "---|" * len(columns))
    for name, result in results.items():
        cells = [
            form.format(result[key]) if key in result else "–" for key, form in columns.items()
        ]
        print(f"| `{name}` |", " | ".join(cells), "|")
    for name, result in results.items():
        if "bleu_by_length" in result:
            cells = [f"≤ {most}: {bleu:.1f}" for _, most, _, bleu in result["bleu_by_length"]]
            print(f"{name}: BLEU by words of the source: {', '.join(cells)}")


def draw(results: dict[str, dict[str, Any]], path: str) -> None:
    """Draw BLEU by the length of the source, with a curve for each architecture that translates."""
    groups = {n: result["bleu_by_length"] for n, result in results.items() if "bleu" in result}
    if not any(groups.values()):
        return
    ranges = [row[:3] for row in next(iter(groups.values()))]
    names = [f"{least}–{most}" for least, most, _ in ranges]
    if ranges[-1][1] == LENGTHS[-1]:
        names[-1] = f"{ranges[-1][0]} or more"
    labels = [f"{name}\nn = {count}" for name, (*_, count) in zip(names, ranges, strict=True)]
    lines = {
        name: list(zip(labels, [row[-1] for row in rows], strict=True))
        for name, rows in groups.items()
    }
    save_lines(lines, ("source length (words)", "BLEU"), path)


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
