"""Attention weights: of one head, of all heads, and as the alignment of two sentences."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_transformer.visualization.figures import new_figure
from tf_transformer.visualization.labels import checked_tokens, readable_tokens, set_title
from tf_transformer.visualization.matrices import (
    WEIGHTS,
    add_colour_bar,
    as_numbers,
    checked_matrix,
    draw_matrix,
    draw_panels,
    inches,
    label_axis,
    margin,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROUNDING = 0.02  # of bfloat16


def plot_attention(
    weights: Any,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
    largest: float | None = 1.0,
) -> "Figure":
    """The attention of one head: queries are rows, keys columns, and dark is much.

    Args:
        weights: float `(T, S)`, from 0 to 1; NaN is hatched.
        queries: The T tokens that attend.
        keys: The S tokens attended to; None for the same tokens.
        title: Above the figure.
        largest: The weight that is black; None for the largest of these.

    Raises:
        ValueError: The weights do not fit the tokens, or are none.
        PlotError: matplotlib is missing.
    """
    return _draw_matrices({"": weights}, queries, keys, ("query", "key"), title, largest)[0]


def plot_alignment(
    weights: Any, source: Sequence[str], target: Sequence[str], title: str = ""
) -> "Figure":
    """How much each token of a target attends to each of the source, the most in a frame.

    Such as `attention` of the signature `align`; compare figure 3 of Bahdanau et al. (2015).

    Args:
        weights: float `(T, S)`, from 0 to 1; NaN is hatched.
        source: The S subwords of the source.
        target: The T subwords of the target.
        title: Above the figure.

    Raises:
        ValueError: The weights do not fit the tokens, or are none.
        PlotError: matplotlib is missing.
    """
    return plot_alignments({"": weights}, source, target, title)


def plot_alignments(
    weights: Mapping[str, Any], source: Sequence[str], target: Sequence[str], title: str = ""
) -> "Figure":
    """The alignments of one pair by several models, side by side; see `plot_alignment`.

    Args:
        weights: Names of the models, and the weights of each, float `(T, S)`.
        source: The S subwords of the source.
        target: The T subwords of the target.
        title: Above the figure.

    Raises:
        ValueError: There are no weights, or they do not fit the tokens.
        PlotError: matplotlib is missing.
    """
    figure, panels = _draw_matrices(weights, target, source, ("target", "source"), title, 1.0)
    from matplotlib.patches import Rectangle

    for axes, matrix in panels:
        for row, line in enumerate(matrix):
            if np.isfinite(line).any() and line[np.nanargmax(line)] > 0:
                corner = np.nanargmax(line) - 0.5, row - 0.5
                style = {"fill": False, "edgecolor": "tab:red", "linewidth": 1.5, "zorder": 3}
                axes.add_patch(Rectangle(corner, 1, 1, **style))
    return figure


def plot_heads(
    weights: Any,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
    largest: float | None = 1.0,
) -> "Figure":
    """The attention of every head of every layer: a row of panels for each layer.

    Args:
        weights: float `(layers, H, T, S)`, or a list of each layer's `(H, T, S)`, as
            `attention["cross"]` has for each sentence; from 0 to 1; NaN is hatched.
        queries: The T tokens that attend.
        keys: The S tokens attended to; None for the same tokens.
        title: Above the figure.
        largest: The weight that is black; None for the largest of these.

    Raises:
        ValueError: The weights do not fit the tokens, or are none.
        PlotError: matplotlib is missing.
    """
    queries, keys = _both(queries, keys)
    weights = as_numbers("weights", weights)
    if (
        weights.ndim != 4
        or 0 in weights.shape[:2]
        or weights.shape[2:]
        != (
            len(queries),
            len(keys),
        )
    ):
        raise ValueError(
            f"weights must have shape (layers, heads, queries, keys) = (…, …, {len(queries)}, "
            f"{len(keys)}), with a layer and a head at least; received shape {weights.shape}."
        )
    _require_weights(weights)
    layers, heads = weights.shape[:2]
    size = (
        inches(len(keys), 0.14, 1.4, min(8.0, 24.0 / heads)),
        inches(len(queries), 0.14, 1.4, min(8.0, 24.0 / layers)),
    )
    (rows, columns), style = readable_tokens(queries, keys)
    figure = new_figure(
        (size[0] + 0.15) * heads + margin(rows) + 1.2,
        (size[1] + 0.15) * layers + margin(columns) + 0.4,
    )
    grid = figure.subplots(layers, heads, sharex=True, sharey=True, squeeze=False)
    scale = {"vmin": 0.0, "vmax": _black(weights, largest), "cmap": WEIGHTS}
    for layer, head in np.ndindex(layers, heads):
        axes = grid[layer, head]
        image = draw_matrix(axes, weights[layer, head], size, **scale)
        if layer == 0:
            axes.set_title(f"head {head}", fontsize=9)
        if layer == layers - 1:
            label_axis(axes.xaxis, "key", columns, style, size[0])
        if head == 0:
            name = f"layer {layer}\nquery" if layers > 1 else "query"
            label_axis(axes.yaxis, name, rows, style, size[1])
    add_colour_bar(image, grid, "attention weight")
    set_title(figure, title)
    return figure


def _draw_matrices(weights, queries, keys, names, title, largest):
    """The figure, and the axes and the array of each of the weights."""
    queries, keys = _both(queries, keys)
    shape, named = (len(queries), len(keys)), f"({names[0]}, {names[1]})"
    if not weights:
        raise ValueError("weights must name at least one matrix; received none.")
    arrays = {
        name: checked_matrix(f"weights of {name!r}" if name else "weights", matrix, shape, named)
        for name, matrix in weights.items()
    }
    for array in arrays.values():
        _require_weights(array)
    black = _black(np.stack(list(arrays.values())), largest)
    figure, panels = draw_panels(
        arrays, (queries, keys), names, title, beside=0.85, cmap=WEIGHTS, vmin=0.0, vmax=black
    )
    image = next(iter(panels[-1].images), None)
    add_colour_bar(image, panels[0] if len(arrays) == 1 else panels, "attention weight")
    return figure, list(zip(panels, arrays.values(), strict=True))


def _both(queries, keys):
    queries = checked_tokens("queries", queries)
    return queries, queries if keys is None else checked_tokens("keys", keys)


def _require_weights(weights):
    bad = weights[(weights < 0) | (weights > 1 + _ROUNDING)]
    if bad.size:
        raise ValueError(
            f"weights must be from 0 to 1, after the softmax; received {bad.flat[0]:g}."
        )


def _black(weights, largest):
    if largest is None:
        finite = weights[np.isfinite(weights)]
        largest = finite.max() if finite.size and finite.max() > 0 else 1.0
    if not 0 < largest <= 1 + _ROUNDING:
        raise ValueError(f"largest must be greater than 0 and at most 1; received {largest:g}.")
    return largest
