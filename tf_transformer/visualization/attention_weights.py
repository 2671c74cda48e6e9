"""Attention weights: of one head, of all heads, and as the alignment of two sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tf_transformer.visualization.matrices import add_colour_bar, draw_matrices


def plot_attention(
    weights: Any, queries: Sequence[str], keys: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Plot the attention weights of one head: a row for each query, dark for a large weight.

    Args:
        weights: float `(T, S)`, from 0 to 1; NaN is hatched.
        queries: The T tokens that attend.
        keys: The S tokens that are attended to. None means the queries.
    """
    tokens = queries, queries if keys is None else keys
    return _draw([[weights]], tokens, ("query", "key"), title, [""])[0]


def plot_heads(
    weights: Any,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
    largest: float = 1.0,
) -> Figure:
    """Plot the attention weights of every head: a row of panels for each layer.

    Args:
        weights: float `(layers, H, T, S)`, or a list of each layer's `(H, T, S)`.
        queries, keys, title: See `plot_attention`.
        largest: The weight that is drawn in black.
    """
    tokens = queries, queries if keys is None else keys
    heads = [f"head {head}" for head in range(len(weights[0]))]
    cell = np.clip(2 / len(tokens[1]), 0.14, 0.22)  # legible labels where there are few
    figure, panels = _draw(weights, tokens, ("query", "key"), title, heads, largest, cell)
    if len(panels) > 1:
        for layer, axes in enumerate(panels[:, 0]):
            axes.set_ylabel(f"layer {layer}\n{axes.get_ylabel()}")
    return figure


def plot_alignment(
    weights: Any, source: Sequence[str], target: Sequence[str], title: str = ""
) -> Figure:
    """Plot how much each target token attends to each source token, its largest weight framed.

    `Translator.align` returns the weights; compare figure 3 of Bahdanau et al. (2015).

    Args:
        weights: float `(T, S)`, from 0 to 1; NaN is hatched.
        source, target: The S subwords of the source, and the T subwords of the target.
    """
    return plot_alignments({"": weights}, source, target, title)


def plot_alignments(
    weights: Mapping[str, Any], source: Sequence[str], target: Sequence[str], title: str = ""
) -> Figure:
    """Plot alignments of one pair by several named models side by side; see `plot_alignment`."""
    matrices = list(weights.values())
    figure, panels = _draw([matrices], (target, source), ("target", "source"), title, list(weights))
    for axes, matrix in zip(panels[0], matrices, strict=True):
        for row, line in enumerate(np.nan_to_num(np.asarray(matrix, "float64"))):
            if line.any():
                corner = line.argmax() - 0.5, row - 0.5
                style = {"fill": False, "edgecolor": "tab:red", "linewidth": 1.5, "zorder": 3}
                axes.add_patch(Rectangle(corner, 1, 1, **style))
    return figure


def _draw(grid, tokens, names, title, column_titles, largest=1.0, cell=0.3):
    """Draw a grid of attention weights with its scale; return the figure and its panels."""
    grid = np.stack([[np.asarray(matrix, "float64") for matrix in row] for row in grid])
    if ((grid < 0) | (grid > 1.02)).any():  # bfloat16 rounds
        raise ValueError("attention weights must be from 0 to 1, as the softmax returns them.")
    scale = {"cmap": "Greys", "vmin": 0.0, "vmax": largest}
    figure, panels = draw_matrices(grid, tokens, names, title, column_titles, cell, **scale)
    add_colour_bar(figure, panels, "attention weight")
    return figure, panels
