"""`tf-transformer plot`: the curves of runs as a picture."""

import argparse

from tf_transformer.errors import InputError
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
    """Draws the curves into a file."""
    from tf_transformer.visualization.curves import plot_history
    from tf_transformer.visualization.figure import require_picture, save_figure

    require_picture(options.output)
    logs = [(path, RunDirectory.open(path).log()) for path in options.run_dirs]
    logs = [(path, log) for path, log in logs if log]  # an average of checkpoints has no log
    if not logs:
        raise InputError("no run has a validation in its log yet, so there is no curve.")
    save_figure(plot_history(logs), options.output)
    print(options.output)
    return 0
