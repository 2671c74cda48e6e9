"""Draw the training curves of runs.

Draw loss, validation BLEU, validation perplexity and learning rate over the steps of one or more
runs. Needs matplotlib.
"""

from tf_transformer.commands.options import Checked, argument, option
from tf_transformer.errors import InputError
from tf_transformer.runs.run_directory import RunDirectory


class Options(Checked):
    """The options of `plot`."""

    run_dirs: list[str] = argument("RUN_DIR")
    output: str = option("curves.png", "a .png, .svg or .pdf file; default: curves.png", "F")


def run(options: Options) -> int:
    """Draw the curves into a file."""
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
