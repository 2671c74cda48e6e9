"""Figures without pyplot, so without windows and global state, and the files they go to."""

import importlib.util
import os
import pathlib
from typing import TYPE_CHECKING

from tf_transformer.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LARGEST = 30.0  # inches: 4,500 pixels in a file


class PlotError(InputError):
    """A figure that cannot be drawn or written."""


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of bounded size, whose layout makes space for every label.

    Args:
        width: Inches.
        height: Inches.

    Raises:
        PlotError: matplotlib is missing.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(min(width, _LARGEST), min(height, _LARGEST)), layout="constrained")


def save_figure(figure: "Figure", output: str | os.PathLike[str]) -> None:
    """Writes a figure into a file, and makes its folder where there is none.

    Args:
        figure: The figure.
        output: The file; its suffix says the format, such as `.png`.

    Raises:
        PlotError: The format is unknown.
    """
    output = require_format(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    # Tight, because the layout around square cells is only near, and would cut labels off.
    figure.savefig(output, dpi=150, bbox_inches="tight", pad_inches=0.1)


def require_format(output: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a picture that can be written.

    Raises:
        PlotError: matplotlib is missing, or the format is unknown.
    """
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    output = pathlib.Path(output)
    known = FigureCanvasBase.get_supported_filetypes()
    if output.suffix.removeprefix(".").lower() not in known:
        raise PlotError(f"{output}: must end in one of .{', .'.join(sorted(known))}.")
    return output


def require_matplotlib() -> None:
    """Raises a `PlotError` where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("pictures need matplotlib. Install it: pip install matplotlib")
