"""Write a smaller run, with only the subwords that some texts need.

Write the best checkpoint of a run as a new run with fewer subwords: those of the given texts and of
the model's translations of the source texts, single characters and bytes. The new run translates
the source texts as before; with a beam, a few translations may change, and are counted. The new run
can be evaluated, exported and so on, but not resumed.

tf-transformer trim runs/opus runs/small --keep a.de --keep-target a.en
"""

from tf_transformer.commands.options import Checked, SearchOptions, argument, group, option
from tf_transformer.data.lines import read_lines
from tf_transformer.machine import quiet, run_in_callers_thread
from tf_transformer.runs.run_directory import RunDirectory


class Options(Checked):
    """The options of `trim`."""

    run_dir: str = argument("RUN_DIR")
    new_run_dir: str = argument("NEW_RUN_DIR")
    keep: list[str] = option(..., "files of sentences to translate as before, plain or gzip", "F")
    keep_target: list[str] | None = option(None, "references, whose subwords are kept too", "F")
    search: SearchOptions = group(SearchOptions)


def run(options: Options) -> int:
    """Write the new run and print what changed."""
    run_directory = RunDirectory.open(options.run_dir)
    options.search.require_beam(1)
    sources, targets = (
        [line for path in paths for line in read_lines(path)]
        for paths in (options.keep, options.keep_target or [])
    )
    with quiet():
        from tf_transformer.runs.trimming import trim_run
    run_in_callers_thread()
    search = options.search.model_dump(exclude_none=True)
    report = trim_run(run_directory, options.new_run_dir, sources, targets, **search)
    print(*report, sep="\n")
    return 0
