"""Labelled curves in one panel, told apart without colour too."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_transformer.visualization.figures import new_figure
from tf_transformer.visualization.labels import readable_names
from tf_transformer.visualization.matrices import as_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = ("-", "--", "-.", ":")
_MARKERS = "os^Dv"
_MOST_MARKERS = 40
_INSIDE = 6  # curves whose names stand within the panel


def checked_curves(curves: Mapping[str, Any], xs: Any | None, name: str) -> tuple[dict, np.ndarray]:
    """Curves as arrays, and the numbers below them.

    Args:
        curves: Labels, and the values of each, float `(N,)`.
        xs: float `(N,)`; None for 1, 2, …, as far as the longest curve goes.
        name: What `xs` are.

    Raises:
        ValueError: A curve is none, or of another length than `xs`.
    """
    if not isinstance(curves, Mapping) or not all(isinstance(label, str) for label in curves):
        raise ValueError("curves must be a dict of labels and values.")
    arrays = {label: _vector(f"curve {label[:40]!r}", values) for label, values in curves.items()}
    if xs is None:
        return arrays, np.arange(1.0, 1 + max(map(len, arrays.values()), default=0))
    xs = _vector(name, xs)
    for label, values in arrays.items():
        if len(values) != len(xs):
            raise ValueError(
                f"curve {label[:40]!r} must have {len(xs)} values, one for each of {name}; "
                f"received {len(values)}."
            )
    return arrays, xs


def new_panel(width: float, labels: Sequence[str]) -> "Axes":
    """The axes of a new figure, with space beside them for the names of many curves."""
    if len(labels) <= _INSIDE:
        return new_figure(width, 4.5).subplots()
    beside = 0.6 + 0.085 * min(max(map(len, labels)), 48)
    return new_figure(width + beside, max(4.5, 0.22 * len(labels))).subplots()


def draw_curves(axes: "Axes", curves: Mapping[str, np.ndarray], xs: Sequence[float]) -> list[Any]:
    """Draws curves with a legend, dark to light in their order; NaN is a gap.

    Returns:
        Their lines.
    """
    import matplotlib

    # Its lightest third would be hard to see on white.
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.7, max(len(curves), 1)))
    lines = []
    for number, values in enumerate(curves.values()):
        markers = _MARKERS[number % len(_MARKERS)] if len(values) <= _MOST_MARKERS else None
        lines += axes.plot(
            xs[: len(values)], values, color=shades[number], marker=markers, markersize=4,
            linestyle=_STYLES[number % len(_STYLES)],
        )  # fmt: skip
    axes.grid(True, color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if lines:
        _add_legend(axes, lines, list(curves))
    return lines


def _add_legend(axes, lines, labels):
    names, style = readable_names(labels)
    is_inside = len(names) <= _INSIDE
    place = {"loc": "best"} if is_inside else {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    points = 72 * axes.figure.get_figheight() / (1.8 * len(names))
    legend = axes.legend(
        lines, [" "] * len(names), frameon=False, fontsize=float(np.clip(points, 2, 10)), **place
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=name, **style)  # so that a name may begin with an underscore


def _vector(name, values):
    array = as_numbers(name, values)
    if array.ndim != 1:
        raise ValueError(f"{name} must be a list of numbers; received shape {array.shape}.")
    if np.isinf(array).any():
        raise ValueError(f"{name} must be finite; received an infinite number.")
    return array
