"""`tf-transformer plot`: the curves of runs as a picture."""

import argparse

from tf_transformer.runs.run_directory import RunDirectory

HELP = "draw the curves of runs"
DESCRIPTION = (
    "Draws loss, validation BLEU, validation perplexity and learning rate over the steps of one "
    "run or several. Needs matplotlib."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("run_dirs", metavar="RUN_DIR", nargs="+")
    parser.add_argument(
        "--output", default="curves.png", metavar="F", help="default: curves.png; also .svg, .pdf"
    )


def run(options: argparse.Namespace, started: float) -> int:
    """Draws."""
    from tf_transformer.visualization.history import save_history

    save_history(
        [(path, RunDirectory.open(path).log()) for path in options.run_dirs], options.output
    )
    print(options.output)
    return 0
