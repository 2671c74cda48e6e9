"""Plots of the logs of runs, of learning rates, and of BLEU by the length of sentences."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from tf_transformer.visualization.figure import new_figure, text_style

# The panels of a log: each has a title, and metrics with their line styles.
_PANELS = {
    "Loss": {"loss": "--", "val_loss": "-"},
    "Validation BLEU": {"val_bleu": "-"},
    "Validation perplexity": {"val_perplexity": "-"},
    "Learning rate": {"learning_rate": "-"},
}
_FEW = 40  # curves of fewer points have markers


def plot_history(logs: Sequence[tuple[str, Sequence[Mapping[str, float]]]]) -> Figure:
    """Plot loss, validation BLEU, validation perplexity and learning rate of runs.

    Args:
        logs: The name of each run and its log, as `RunDirectory.log` returns it.

    Example:
        >>> from tf_transformer import visualization
        >>> log = [{"step": 10, "loss": 5.0, "val_bleu": 3.0}, {"step": 20, "loss": 4.0}]
        >>> visualization.plot_history([("first run", log)])
        <Figure ...>
    """
    figure = new_figure(11.0, 7.0)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    grid = figure.subplots(2, 2, sharex=True)
    for axes, (title, metrics) in zip(grid.flat, _PANELS.items(), strict=True):
        for number, (_, log) in enumerate(logs):
            for metric, style in metrics.items():
                lines = [line for line in log if metric in line]
                if metric == "learning_rate":  # which rises and falls between validations
                    between = [(*line.get("training", ()), line) for line in lines]
                    lines = [*itertools.chain(*between)]
                points = np.array([(line["step"], line[metric]) for line in lines])
                marker = "o" if len(points) < _FEW else None
                if len(points):
                    axes.plot(*points.T, style, color=f"C{number}", marker=marker, markersize=3)
        axes.set_title(title, loc="left", fontweight="bold")
        _tidy(axes)
        _label_steps(axes)
    loss, bleu, perplexity, rate = grid.flat
    keys = [Line2D([], [], color="0.3", linestyle=style) for style in _PANELS["Loss"].values()]
    loss.legend(keys, ("training", "validation"), frameon=False)
    bleu.set_ylim(bottom=0)
    rate.set_ylim(bottom=0)
    perplexity.set_yscale("log")  # it spans decades
    perplexity.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    perplexity.yaxis.set_major_formatter("{x:g}")
    perplexity.yaxis.set_minor_formatter(NullFormatter())
    for axes in grid[-1]:
        axes.set_xlabel("step")
    # Below, where BLEU has left room.
    keys = [Line2D([], [], color=f"C{number}") for number in range(len(logs))]
    names = [name for name, _ in logs]
    legend = bleu.legend(keys, names, loc="lower right", frameon=False)
    for text in legend.get_texts():
        text.set(**text_style())
    return figure


def plot_schedules(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Plot learning rates over the steps of training.

    Args:
        curves: Labels, and the learning rates for each label at steps 1, 2, ….

    Example:
        >>> from tf_transformer import visualization
        >>> schedule = tt.NoamSchedule(d_model=512, warmup_steps=10)
        >>> visualization.plot_schedules({"noam": [float(schedule(step)) for step in range(30)]})
        <Figure ...>
    """
    axes = _plot_curves(curves)
    axes.set(xlabel="step", ylabel="learning rate")
    _label_steps(axes)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=True)
    return axes.figure


def plot_bleu_by_length(
    lengths: Sequence[str], curves: Mapping[str, Sequence[float]], sentences: Sequence[int]
) -> Figure:
    """Plot the BLEU of systems by source length, as in figure 2 of Bahdanau et al. (2015).

    Args:
        lengths: Names of N groups of sentences, such as "1–10", shortest first.
        curves: Labels of the systems, and the BLEU of each on every group; NaN is a gap.
        sentences: The number of sentences in each group.

    Example:
        >>> from tf_transformer import visualization
        >>> curves = {"Bahdanau": [30.0, 25.0], "Transformer": [33.0, 31.0]}
        >>> visualization.plot_bleu_by_length(["1–10", "11–20"], curves, sentences=[500, 400])
        <Figure ...>
    """
    axes = _plot_curves(curves)
    groups = [f"{name}\nn = {count}" for name, count in zip(lengths, sentences, strict=True)]
    axes.set_xticks(range(1, 1 + len(groups)), groups)
    axes.set(xlabel="source length (words)", ylabel="BLEU")
    return axes.figure


def _plot_curves(curves: Mapping[str, Sequence[float]]) -> Axes:
    """Plot curves over 1, 2, … with different colours, line styles and markers."""
    axes = new_figure(8.0, 4.5).subplots()
    for number, (label, values) in enumerate(curves.items()):
        marker = "os^Dv"[number % 5] if len(values) < _FEW else None
        style = {"label": label, "marker": marker, "markersize": 4}
        axes.plot(range(1, 1 + len(values)), values, ("-", "--", "-.", ":")[number % 4], **style)
    axes.set_ylim(bottom=0)
    if len(curves) > 3:  # they would leave no room
        axes.figure.legend(loc="outside right upper", frameon=False)
    else:
        axes.legend(frameon=False)
    _tidy(axes)
    return axes


def _tidy(axes: Axes) -> None:
    axes.grid(True, which="major", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label_steps(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
