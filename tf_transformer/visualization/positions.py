"""Position encodings, sinusoids or learned: the table, and how similar positions are."""

from typing import TYPE_CHECKING, Any

import numpy as np

from tf_transformer.visualization.figures import new_figure
from tf_transformer.visualization.labels import set_title
from tf_transformer.visualization.matrices import (
    VALUES,
    add_colour_bar,
    as_numbers,
    draw_matrix,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_positions(table: Any, title: str = "") -> "Figure":
    """The encoding of each position, a row each, such as `sinusoidal_positions` returns.

    Args:
        table: float `(length, D)`; NaN is hatched.
        title: Above the figure.

    Raises:
        ValueError: The table is none.
        PlotError: matplotlib is missing.
    """
    table = _checked(table)
    largest = _largest(table)
    return _image(table, ("dimension", "position"), "value", (-largest, largest), title)


def plot_position_similarity(table: Any, title: str = "") -> "Figure":
    """The cosine of the angle between the encodings of each two positions.

    Of sinusoids it depends on the distance alone (Vaswani et al. 2017, section 3.5).

    Args:
        table: float `(length, D)`; positions with NaN or of length 0 are hatched.
        title: Above the figure.

    Raises:
        ValueError: The table is none.
        PlotError: matplotlib is missing.
    """
    table = _checked(table)
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        directions = table / norms
    cosines = np.clip(directions @ directions.T, -1, 1)
    # Those of sinusoids are seldom negative, and would have half the colours.
    limits = -1.0 if (cosines < 0).any() else 0.0, 1.0
    return _image(cosines, ("position", "position"), "cosine similarity", limits, title)


def _checked(table):
    table = as_numbers("table", table)
    if table.ndim != 2:
        raise ValueError(f"table must have shape (length, D); received shape {table.shape}.")
    if np.isinf(table).any():
        raise ValueError("table must hold finite numbers; received an infinite one.")
    return table


def _largest(table):
    finite = np.abs(table[np.isfinite(table)])
    return finite.max() if finite.size and finite.max() > 0 else 1.0


def _image(matrix, names, label, limits, title):
    figure = new_figure(7.0, 5.0)
    axes = figure.subplots()
    lowest, highest = limits
    image = draw_matrix(axes, matrix, (5.0, 4.0), cmap=VALUES, vmin=lowest, vmax=highest)
    axes.set(xlabel=names[0], ylabel=names[1])
    set_title(axes, title)
    if image is not None:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)
    add_colour_bar(image, axes, label)
    return figure
