"""Matrices whose rows and columns are tokens, as images."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_transformer.visualization.figures import new_figure
from tf_transformer.visualization.labels import readable_tokens, set_title, width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Light is little. Ordered by lightness, so it is the same in grey and to every eye.
WEIGHTS = "Greys"
VALUES = "cividis"
_HATCH = "////"
_SMALLEST_FONT, _LARGEST_FONT = 6.0, 9.0  # points
_MOST_LINES = 60


def checked_matrix(name: str, values: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """An array of numbers of this shape, float64.

    Args:
        name: The argument's.
        values: Anything that NumPy makes an array of.
        shape: What it must have.
        what: What the axes are, such as `(queries, keys)`.

    Raises:
        ValueError: It holds no numbers, or has another shape.
    """
    array = as_numbers(name, values)
    if array.size == 0 and 0 in shape:
        array = array.reshape(shape)  # an empty list has but one axis
    if array.shape != shape:
        raise ValueError(
            f"{name} must have shape {what} = {shape}, one for each token; "
            f"received shape {array.shape}."
        )
    return array


def as_numbers(name: str, values: Any) -> np.ndarray:
    """An array of numbers, float64, of any shape.

    Raises:
        ValueError: It holds something else.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind in "SUOcmM":
            raise TypeError
        return array.astype("float64")
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be an array of real numbers.") from None


def inches(count: int, cell: float = 0.3, smallest: float = 1.2, largest: float = 15.0) -> float:
    """How long an axis of so many cells is drawn."""
    return min(max(count * cell, smallest), largest)


def margin(labels: Sequence[str]) -> float:
    """Inches that the longest label takes, and the names of axes."""
    return 0.5 + 0.085 * max(map(width, labels), default=0)


def draw_matrix(axes: "Axes", matrix: np.ndarray, size: tuple[float, float], **how: Any) -> Any:
    """Draws an image with a cell for each number; NaN is hatched.

    Args:
        axes: Where.
        matrix: float `(rows, columns)`; without cells, it says so.
        size: Inches of width and height that the cells have, about.
        how: Options of matplotlib's `imshow`.

    Returns:
        The image, None where there is no cell.
    """
    axes.patch.set(facecolor="white", edgecolor="0.6", hatch=_HATCH)
    if matrix.size == 0:
        axes.patch.set(hatch="")
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no tokens", ha="center", va="center", transform=axes.transAxes)
        return None
    rows, columns = matrix.shape
    # Square cells, but where an axis is shortened to the largest size.
    is_square = abs(size[0] / columns - size[1] / rows) < 1e-6
    image = axes.imshow(matrix, aspect="equal" if is_square else "auto", **how)
    if max(rows, columns) <= _MOST_LINES:
        axes.set_xticks(np.arange(columns - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(rows - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="0.85", linewidth=0.4)
        axes.tick_params(which="minor", length=0)
    return image


def draw_panels(
    matrices: Mapping[str, np.ndarray],
    tokens: tuple[Sequence[str], Sequence[str]],
    names: tuple[str, str],
    title: str,
    *,
    beside: float = 0.0,
    below: float = 0.0,
    **how: Any,
) -> "tuple[Figure, np.ndarray]":
    """Draws matrices over the same tokens side by side.

    Args:
        matrices: Names, which stand above the panels, and a matrix `(rows, columns)` of each.
        tokens: Of the rows and of the columns.
        names: What these tokens are.
        title: Above the figure.
        beside: Inches for what the figure has beside the panels.
        below: Inches for what it has below them.
        how: As of `draw_matrix`.

    Returns:
        The figure, and the axes of each panel.
    """
    size = inches(len(tokens[1])), inches(len(tokens[0]))
    (rows, columns), style = readable_tokens(*tokens)
    above = 0.3 * bool(title) + 0.3 * any(matrices)
    figure = new_figure(
        (size[0] + 0.15) * len(matrices) + margin(rows) + beside,
        size[1] + margin(columns) + above + below,
    )
    panels = figure.subplots(1, len(matrices), sharey=True, squeeze=False)[0]
    for axes, (name, matrix) in zip(panels, matrices.items(), strict=True):
        draw_matrix(axes, matrix, size, **how)
        label_axis(axes.xaxis, names[1], columns, style, size[0])
        set_title(axes, name)
    label_axis(panels[0].yaxis, names[0], rows, style, size[1])
    set_title(figure if any(matrices) else panels[0], title)
    return figure, panels


def label_axis(
    axis: "Axis", name: str, labels: Sequence[str], style: dict[str, Any], size: float
) -> None:
    """Writes the tokens along an axis, as many as can be read.

    Args:
        axis: The x axis or the y axis.
        name: What the tokens are.
        labels: The tokens, as `readable` has them.
        style: Their properties, of `readable` too.
        size: Inches that the axis has.
    """
    if not axis.axes.images:
        axis.set_label_text(name)
        return
    points = 72 * size / max(len(labels), 1)
    every = max(1, int(np.ceil(1.15 * _SMALLEST_FONT / points)))
    font = float(np.clip(0.7 * points * every, _SMALLEST_FONT, _LARGEST_FONT))
    is_x = axis.axis_name == "x"
    if is_x and 0.65 * font * max(map(width, labels)) > points * every:
        style = {**style, "rotation": 90}
    numbers = range(0, len(labels), every)
    axis.set_ticks(numbers, [labels[number] for number in numbers], fontsize=font, **style)
    axis.set_label_text(name if every == 1 else f"{name} (every {ordinal(every)} is written)")


def ordinal(number: int) -> str:
    """Such as `2nd`."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def add_colour_bar(image: "AxesImage | None", axes: Any, label: str) -> None:
    """Draws the scale of an image beside its axes, and says what is hatched."""
    if image is None:
        return
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    figure = image.figure
    # Ticks that do not depend on the height, or the layout would be made for others.
    least, most = image.get_clim()
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(least, most)
    figure.colorbar(image, ax=axes, label=label, pad=0.02, fraction=0.05, aspect=25,
                    ticks=ticks[(ticks >= least) & (ticks <= most)], format="{x:.3g}")  # fmt: skip
    images = [drawn for panel in np.ravel(axes) for drawn in panel.images]
    if any(np.ma.getmaskarray(drawn.get_array()).any() for drawn in images):
        patch = Patch(facecolor="white", edgecolor="0.6", hatch=_HATCH)
        figure.legend([patch], ["NaN"], loc="outside lower right", frameon=False)
