"""Curves of training runs: loss, validation perplexity, validation BLEU and learning rate."""

import os
from typing import TYPE_CHECKING

from tf_transformer.visualization.figures import (
    PlotError,
    new_figure,
    require_format,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A panel: its title, and the metrics in it with their line styles.
_PANELS = (
    ("Loss", (("loss", "--"), ("val_loss", "-"))),
    ("Validation BLEU", (("val_bleu", "-"),)),
    ("Validation perplexity", (("val_perplexity", "-"),)),
    ("Learning rate", (("learning_rate", "-"),)),
)
_FROM_ZERO = ("Validation BLEU", "Learning rate")
_LOGARITHMIC = ("Validation perplexity",)  # it spans decades

Log = list[dict[str, float]]


def save_history(logs: list[tuple[str, Log]], output: str | os.PathLike[str]) -> None:
    """Draws the curves of some runs into a file.

    Args:
        logs: Labels and logs (`RunDirectory.log`); a run without any, such as an average of
            checkpoints, is skipped.
        output: The file; its suffix says the format, such as `.png`.

    Raises:
        PlotError: matplotlib is missing, all logs are empty, or the format is unknown.
    """
    require_format(output)
    logs = [(label, lines) for label, lines in logs if lines]
    if not logs:
        raise PlotError("no run has a validation in its log yet, so there is no curve.")
    save_figure(plot_history(logs), output)


def plot_history(logs: list[tuple[str, Log]]) -> "Figure":
    """The curves of some runs as a `matplotlib.figure.Figure`; see `save_history`."""
    figure = new_figure(11.0, 7.0)
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    grid = figure.subplots(2, 2, sharex=True).ravel()
    for axes, (title, curves) in zip(grid, _PANELS, strict=True):
        for number, (_, lines) in enumerate(logs):
            for name, style in curves:
                points = [(line["step"], line[name]) for line in lines if name in line]
                if points:
                    axes.plot(
                        *zip(*points, strict=True), style, color=f"C{number % 10}",
                        marker="o" if len(points) < 40 else None, markersize=3,
                    )  # fmt: skip
        if len(curves) > 1:
            keys = [Line2D([], [], color="0.3", linestyle=style) for _, style in curves]
            axes.legend(keys, ("training", "validation"), frameon=False)
        if title in _FROM_ZERO:
            axes.set_ylim(bottom=0)
        if title in _LOGARITHMIC:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(title, loc="left", fontweight="bold")
        axes.grid(True, which="major", color="0.9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    for axes in grid[2:]:
        axes.set_xlabel("step")
    runs = [Line2D([], [], color=f"C{number % 10}") for number in range(len(logs))]
    figure.legend(runs, [label for label, _ in logs], loc="outside upper left", ncols=4,
                  frameon=False)  # fmt: skip
    return figure
