"""Draw the training curves of runs.

Draw loss, validation BLEU, validation perplexity and learning rate over the steps of one or more
runs. Needs matplotlib.

tf-transformer plot runs/de_en runs/other --output curves.svg
"""

from tf_transformer.commands.options import Checked, argument, option
from tf_transformer.errors import InputError
from tf_transformer.runs.run_directory import RunDirectory, warn


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
    # A run that was imported or trimmed, for example, has no log.
    drawn = [(path, log) for path, log in logs if log]
    if not drawn:
        raise InputError("no run has a validation in its log yet, so there is no curve.")
    for path, log in logs:
        if not log:
            warn(f"{path} has no validation in its log, and is left out.")
    save_figure(plot_history(drawn), options.output)
    print(options.output)
    return 0
