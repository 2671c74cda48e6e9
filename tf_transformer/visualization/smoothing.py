"""Label smoothing: the distribution that a model learns, and the loss that it gives."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_transformer.visualization.curves import checked_curves, draw_curves, new_panel
from tf_transformer.visualization.figures import new_figure
from tf_transformer.visualization.labels import checked_tokens, readable_tokens, set_title
from tf_transformer.visualization.matrices import (
    VALUES,
    add_colour_bar,
    checked_matrix,
    draw_matrix,
    inches,
    label_axis,
    margin,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NUMBERS = 150


def plot_target_distribution(
    distribution: Any, targets: Sequence[str], vocabulary: Sequence[str], title: str = ""
) -> "Figure":
    """The smoothed target of each position, a row each.

    Args:
        distribution: float `(T, V)`; NaN is hatched. The probabilities are written into the cells
            where these are few.
        targets: The true token of each of the T positions.
        vocabulary: The V tokens.
        title: Above the figure.

    Raises:
        ValueError: The distribution does not fit the tokens, or a number is not from 0 to 1.
        PlotError: matplotlib is missing.
    """
    targets = checked_tokens("targets", targets)
    vocabulary = checked_tokens("vocabulary", vocabulary)
    shape = len(targets), len(vocabulary)
    matrix = checked_matrix("distribution", distribution, shape, "(targets, vocabulary)")
    if ((matrix < 0) | (matrix > 1)).any():
        raise ValueError("distribution must hold probabilities, from 0 to 1.")
    size = inches(len(vocabulary), 0.5), inches(len(targets), 0.5)
    (rows, columns), style = readable_tokens(targets, vocabulary)
    figure = new_figure(size[0] + margin(rows) + 1.0, size[1] + margin(columns) + 0.3 * bool(title))
    axes = figure.subplots()
    image = draw_matrix(axes, matrix, size, cmap=VALUES, vmin=0.0, vmax=1.0)
    for (row, column), value in np.ndenumerate(matrix if matrix.size <= _MOST_NUMBERS else []):
        if np.isfinite(value):
            colour = "white" if value < 0.5 else "black"
            axes.text(column, row, f"{value:.2g}", ha="center", va="center", color=colour, size=7)
    label_axis(axes.xaxis, "token of the vocabulary", columns, style, size[0])
    label_axis(axes.yaxis, "true token", rows, style, size[1])
    add_colour_bar(image, axes, "target probability")
    set_title(axes, title)
    return figure


def plot_smoothed_loss(
    probabilities: Sequence[float], losses: Mapping[str, Sequence[float]], title: str = ""
) -> "Figure":
    """The loss of a prediction over the probability that it gives the true token.

    A dot is where a curve is lowest: with smoothing not at 1, so too sure a prediction costs.

    Args:
        probabilities: N probabilities of the true token.
        losses: Labels, such as "0.1", and the N losses in nats of each.
        title: Above the figure.

    Raises:
        ValueError: A curve has another length, or a probability is not from 0 to 1.
        PlotError: matplotlib is missing.
    """
    arrays, probabilities = checked_curves(losses, probabilities, "probabilities")
    if ((probabilities < 0) | (probabilities > 1)).any():
        raise ValueError("probabilities must be from 0 to 1.")
    axes = new_panel(7.0, list(arrays))
    order = np.argsort(probabilities)
    arrays = {label: values[order] for label, values in arrays.items()}
    lines = draw_curves(axes, arrays, probabilities[order])
    for line in lines:
        xs, values = line.get_data()
        if np.isfinite(values).any():
            lowest = np.nanargmin(values)
            dot = {"color": line.get_color(), "markersize": 7, "clip_on": False}
            axes.plot(xs[lowest], values[lowest], "o", **dot)
    axes.set(xlabel="predicted probability of the true token", ylabel="loss (nats)")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(bottom=0)
    set_title(axes, title)
    return axes.figure
