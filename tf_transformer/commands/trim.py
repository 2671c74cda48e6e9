"""`tf-transformer trim`: a run with only the subwords that some texts need."""

import argparse

from tf_transformer.commands.models import quiet, search_errors
from tf_transformer.commands.options import add_search_options
from tf_transformer.data.text import read_lines
from tf_transformer.runs.run_directory import RunDirectory

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
        from tf_transformer.inference.translator import run_in_callers_thread
        from tf_transformer.runs.trimming import trim_run
    run_in_callers_thread()
    with search_errors():
        report = trim_run(
            run_directory,
            options.new_run_dir,
            sources,
            targets,
            beam_size=options.beam_size or 1,
            length_penalty=options.length_penalty,
            batch_size=options.batch_size,
            xla=options.xla,
            threads=options.threads,
        )
    print(*report, sep="\n")
    return 0
