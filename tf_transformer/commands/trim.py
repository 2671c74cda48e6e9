"""`tf-transformer trim`: a run with only the subwords that some texts need."""

import argparse
from collections.abc import Sequence
from typing import Any

from tf_transformer.commands.models import quiet, search_errors
from tf_transformer.commands.options import add_search_options
from tf_transformer.data.text import read_lines
from tf_transformer.runs.run_directory import RunDirectory, say

HELP = "write a smaller run, with only the subwords that some texts need"
DESCRIPTION = (
    "Writes the best checkpoint of a run as a new run that has fewer subwords: those of the given "
    "texts and of the model's translations of the source texts, single characters and bytes. It "
    "translates the source texts as before; with a beam a few translations may change, and are "
    "counted. The new run can be evaluated, exported and so on, but not resumed."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("new_run_dir", metavar="NEW_RUN_DIR")
    parser.add_argument(
        "--keep",
        required=True,
        nargs="+",
        metavar="F",
        help="sentences to translate as before, plain or gzip",
    )
    parser.add_argument(
        "--keep-target",
        nargs="+",
        default=[],
        metavar="F",
        help="text of the target language whose subwords are kept too, such as references",
    )
    add_search_options(parser)


def run(options: argparse.Namespace, started: float) -> int:
    """Trims."""
    run_directory = RunDirectory.open(options.run_dir)
    sources, targets = (
        [line for path in paths for line in read_lines(path)]
        for paths in (options.keep, options.keep_target)
    )
    with quiet():
        from tf_transformer.inference.sentences import parts_of
        from tf_transformer.inference.translator import run_in_callers_thread
        from tf_transformer.runs.trimming import trim_run
    run_in_callers_thread()
    # The parts that `translate` searches one by one.
    within_lines = run_directory.config().data.has_sources
    sources = [part for parts in parts_of(sources, within_lines) for part, _ in parts]
    beam_size = options.beam_size or 1

    def translate(translator: Any, lines: Sequence[str]) -> list[str]:
        found = translator.stream(
            lines, beam_size, options.batch_size, beam_size, options.length_penalty
        )
        vocab_size = int(translator.module.settings["vocab_size"])
        say(f"Translating {len(lines):,} lines with {vocab_size:,} target subwords.")
        return [best.text for best, *_ in found]

    with search_errors():
        trimmed = trim_run(
            run_directory, options.new_run_dir, sources, targets, translate,
            xla=options.xla, threads=options.threads,
        )  # fmt: skip
    for name, (after, before) in trimmed.items():
        if name == "bytes":
            print(f"{after / 1000:,.0f} of {before / 1000:,.0f} kB of weights and tokenizers")
        elif name == "translations":
            print(f"{after or 'none'} of {before:,} translations changed")
        else:
            print(f"{after:,} of {before:,} {name}")
    return 0
