"""Plots of attention masks, position encodings and other matrices over tokens."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tf_transformer.visualization.figure import new_figure, spell, text_style, width

_HIDDEN, _ALLOWED = "white", "#33527a"
_SMALLEST_FONT, _LARGEST_FONT = 6.0, 9.0  # points
_MOST_CELLS_WITH_LINES = 60  # rows or columns; more lines would cover the colours
_BAR = {"pad": 0.02, "fraction": 0.05, "aspect": 25}  # the size of a colour bar


def plot_mask(
    mask: Any, queries: Sequence[str], keys: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Plot an attention mask: a row for each query, dark where the query may attend to a key.

    Args:
        mask: bool `(T, S)`, `(1, T, S)` or `(1, 1, S)`, such as a mask from `layers.masks`.
        queries: The T tokens that attend.
        keys: The S tokens that are attended to. None means the queries.

    Example:
        >>> from tf_transformer import visualization
        >>> visualization.plot_mask(tt.causal_mask(3), ["a", "big", "house"])
        <Figure ...>
    """
    return plot_masks({"": mask}, queries, keys, title)


def plot_masks(
    masks: Mapping[str, Any],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """Plot named masks over the same tokens side by side; see `plot_mask`.

    Example:
        >>> from tf_transformer import visualization
        >>> masks = {"causal": tt.causal_mask(3), "local": tt.local_mask(3, radius=1)}
        >>> visualization.plot_masks(masks, ["a", "big", "house"])
        <Figure ...>
    """
    keys = queries if keys is None else keys
    shape = 1, len(queries), len(keys)
    grid = np.stack([np.broadcast_to(mask, shape) for mask in masks.values()], axis=1)
    scale = Scale(ListedColormap([_HIDDEN, _ALLOWED]), 1.0)
    tokens, names = (queries, keys), ("query", "key")
    figure, _ = draw_matrices(grid, tokens, names, title, list(masks), scale)
    labels = {"may attend": _ALLOWED, "hidden": _HIDDEN}
    handles = [Patch(facecolor=c, edgecolor="0.5", label=label) for label, c in labels.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


class Scale(NamedTuple):
    """The appearance of the numbers in matrices.

    Attributes:
        colours: The colours of the numbers from 0 to `largest`.
        label: The label of a colour bar; there is none if this is empty.
    """

    colours: Colormap | str
    largest: float
    label: str = ""


def draw_matrices(
    grid: Any,
    tokens: tuple[Sequence[str], Sequence[str]],
    names: tuple[str, str],
    title: str,
    column_titles: Sequence[str],
    scale: Scale,
    cell: float = 0.3,
) -> tuple[Figure, np.ndarray]:
    """Draw a grid of matrices over the same tokens, with square cells; NaN cells are hatched.

    Args:
        grid: `(R, C, rows, columns)`: R rows of C matrices of numbers from 0 to 1.
        tokens: The tokens of the rows, and the tokens of the columns, of every matrix.
        names: The labels of the row axis and of the column axis, such as `("query", "key")`.
        title, column_titles: The titles of the figure and of the C columns of matrices.
        scale: The appearance of the numbers.
        cell: The size of a cell in inches. Cells are larger for few tokens and smaller for many.

    Returns:
        The figure, and an array `(R, C)` of its axes.
    """
    grid = np.stack([[np.asarray(matrix, "float64") for matrix in row] for row in grid])
    rows, columns = ([spell(token) for token in side] for side in tokens)
    if grid.ndim != 4 or grid.shape[2:] != (len(rows), len(columns)) or grid.size == 0:
        raise ValueError(
            f"a matrix must have a row for each {names[0]} token and a column for each {names[1]} "
            f"token, {(len(rows), len(columns))}; received matrices of shape {grid.shape[2:]}."
        )
    if ((grid < 0) | (grid > 1.02)).any():  # bfloat16 rounds
        raise ValueError("weights and masks must be from 0 to 1, as a softmax returns them.")
    above, beside = grid.shape[:2]
    cell = max(cell, 1.2 / max(len(rows), len(columns)))
    cell = min(cell, 24 / (beside * len(columns)), 15 / (above * len(rows)))
    titles = 0.3 * (bool(title) + any(column_titles))
    size_across = beside * (max(cell * len(columns), 0.8) + 0.15) + _margin(rows) + 0.85
    size_down = above * (max(cell * len(rows), 0.8) + 0.15) + _margin(columns) + titles
    figure = new_figure(size_across, size_down, title)
    panels = figure.subplots(above, beside, sharex=True, sharey=True, squeeze=False)
    for index in np.ndindex(above, beside):
        _draw_matrix(panels[index], grid[index], scale)
    for axes, column_title in zip(panels[0], column_titles, strict=True):
        axes.set_title(column_title, fontsize=10, **text_style())
    for axes in panels[-1]:
        _label_axis(axes.xaxis, names[1], columns, 72 * cell)
    for axes in panels[:, 0]:
        _label_axis(axes.yaxis, names[0], rows, 72 * cell)
    if scale.label:
        # Single axes are passed without a list, so that the bar is as high as the image.
        where = panels if panels.size > 1 else panels.item()
        figure.colorbar(panels[0, 0].images[0], ax=where, label=scale.label, **_BAR)
    return figure, panels


def _draw_matrix(axes: Axes, matrix: np.ndarray, scale: Scale) -> None:
    axes.patch.set(edgecolor="0.6", hatch="////")  # NaN cells are transparent and show the hatch
    axes.imshow(matrix, cmap=scale.colours, vmin=0.0, vmax=scale.largest)
    rows, columns = matrix.shape
    if max(rows, columns) <= _MOST_CELLS_WITH_LINES:
        axes.set_xticks(np.arange(columns - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(rows - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="0.85", linewidth=0.4)
        axes.tick_params(which="minor", length=0)


def _label_axis(axis: Axis, name: str, labels: Sequence[str], points: float) -> None:
    """Write as many labels along an axis as stay legible with cells of `points` points."""
    every = math.ceil(1.15 * _SMALLEST_FONT / points)
    font = float(np.clip(0.7 * points * every, _SMALLEST_FONT, _LARGEST_FONT))
    is_tight = 0.65 * font * max(map(width, labels)) > points * every
    rotation = 90 if is_tight and axis.axis_name == "x" else 0
    style = {"fontsize": font, "rotation": rotation, **text_style()}
    axis.set_ticks(range(0, len(labels), every), labels[::every], **style)
    axis.set_label_text(name if every == 1 else f"{name} (one label for every {every})")


def _margin(labels: Sequence[str]) -> float:
    """Return the space, in inches, for the longest label and the name of an axis."""
    return 0.5 + 0.085 * max(map(width, labels))
