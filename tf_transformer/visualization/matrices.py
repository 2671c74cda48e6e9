"""Plots of attention masks and other matrices over tokens, without the global state of pyplot."""

import functools
import math
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

Tokens = Sequence[str]

_LARGEST = 30.0  # inches: 4,500 pixels in a file
# matplotlib draws each character with the first of these fonts that has it.
_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR",
    "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Bengali",
    "Noto Sans Tamil", "Noto Sans Thai", "WenQuanYi Zen Hei", "IPAexGothic", "NanumGothic",
    "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Nirmala UI", "Leelawadee UI", "Arial Unicode MS",
)  # fmt: skip
_JOINERS = "\u200c\u200d"  # they choose between the shapes of a letter

_HIDDEN, _ALLOWED = "white", "#33527a"
_SMALLEST_FONT, _LARGEST_FONT = 6.0, 9.0  # points
_MOST_CELLS_WITH_LINES = 60  # rows or columns; more lines would cover the colours
_BAR = {"pad": 0.02, "fraction": 0.05, "aspect": 25}  # the size of a colour bar


def plot_mask(mask: Any, queries: Tokens, keys: Tokens | None = None, title: str = "") -> Figure:
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
    masks: Mapping[str, Any], queries: Tokens, keys: Tokens | None = None, title: str = ""
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
    tokens: tuple[Tokens, Tokens],
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
    rows, columns = ([_spell(token) for token in side] for side in tokens)
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
    figure = Figure((min(size_across, _LARGEST), min(size_down, _LARGEST)), layout="constrained")
    if title:
        lines = textwrap.fill(title, int(9 * figure.get_figwidth()), max_lines=4, placeholder="…")
        figure.suptitle(lines, **_text_style())
    panels = figure.subplots(above, beside, sharex=True, sharey=True, squeeze=False)
    for index in np.ndindex(above, beside):
        _draw_matrix(panels[index], grid[index], scale)
    for axes, column_title in zip(panels[0], column_titles, strict=True):
        axes.set_title(column_title, fontsize=10, **_text_style())
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
    is_tight = 0.65 * font * max(map(_width, labels)) > points * every
    rotation = 90 if is_tight and axis.axis_name == "x" else 0
    style = {"fontsize": font, "rotation": rotation, **_text_style()}
    axis.set_ticks(range(0, len(labels), every), labels[::every], **style)
    axis.set_label_text(name if every == 1 else f"{name} (one label for every {every})")


def _margin(labels: Sequence[str]) -> float:
    """Return the space, in inches, for the longest label and the name of an axis."""
    return 0.5 + 0.085 * max(map(_width, labels))


@functools.cache
def _text_style() -> dict[str, Any]:
    """Return properties to draw any text: fonts of many scripts, and no formulas after `$`."""
    installed = font_manager.fontManager.get_font_names()
    fonts = [name for name in _FONTS if name in installed]
    return {"fontfamily": ["sans-serif", *fonts], "parse_math": False}


def _spell(token: str) -> str:
    """Write spaces as `▁`, invisible characters as `<U+200B>`, and shorten a long token."""
    text = "".join(
        "▁" if c.isspace() else c if c.isprintable() or c in _JOINERS else f"<U+{ord(c):04X}>"
        for c in token
    )
    return text if len(text) <= 16 else f"{text[:10]}…{text[-5:]}"


def _width(text: str) -> int:
    """Count the columns of a text; a Chinese, Japanese or Korean character takes two."""
    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text)
