"""Write a smaller run, with only the subwords that some texts need.

Writes the best checkpoint of a run as a new run that has fewer subwords: those of the given texts
and of the model's translations of the source texts, single characters and bytes. It translates the
source texts as before; with a beam a few translations may change, and are counted. The new run can
be evaluated, exported and so on, but not resumed.
"""

from collections.abc import Sequence
from typing import Any

from pydantic.dataclasses import dataclass

from tf_transformer.commands.models import quiet, search_errors
from tf_transformer.commands.options import SearchOptions, argument, group, option
from tf_transformer.data.text import read_lines
from tf_transformer.models.configs import CHECKED
from tf_transformer.runs.run_directory import RunDirectory, say


@dataclass(frozen=True, config=CHECKED)
class Options:
    """The options of `trim`."""

    run_dir: str = argument("RUN_DIR")
    new_run_dir: str = argument("NEW_RUN_DIR")
    keep: list[str] = option(..., "sentences to translate as before, plain or gzip", "F")
    keep_target: list[str] | None = option(
        None, "text of the target language whose subwords are kept too, such as references", "F"
    )
    search: SearchOptions = group(SearchOptions)


def run(options: Options) -> int:
    """Trims."""
    run_directory, search = RunDirectory.open(options.run_dir), options.search
    sources, targets = (
        [line for path in paths for line in read_lines(path)]
        for paths in (options.keep, options.keep_target or [])
    )
    with quiet():
        from tf_transformer.inference.sentences import parts_of
        from tf_transformer.inference.translator import run_in_callers_thread
        from tf_transformer.runs.trimming import trim_run
    run_in_callers_thread()
    # The parts that `translate` searches one by one.
    within_lines = run_directory.config().data.has_sources
    sources = [part for parts in parts_of(sources, within_lines) for part, _ in parts]
    beam_size = search.beam_size or 1

    def translate(translator: Any, lines: Sequence[str]) -> list[str]:
        found = translator.stream(
            lines, beam_size, search.batch_size, beam_size, search.length_penalty
        )
        vocab_size = int(translator.module.settings["vocab_size"])
        say(f"Translating {len(lines):,} lines with {vocab_size:,} target subwords.")
        return [best.text for best, *_ in found]

    new, device = options.new_run_dir, {"xla": search.xla, "threads": search.threads}
    with search_errors():
        trimmed = trim_run(run_directory, new, sources, targets, translate, **device)
    for name, (after, before) in trimmed.items():
        if name == "bytes":
            print(f"{after / 1000:,.0f} of {before / 1000:,.0f} kB of weights and tokenizers")
        elif name == "translations":
            print(f"{after or 'none'} of {before:,} translations changed")
        else:
            print(f"{after:,} of {before:,} {name}")
    return 0
