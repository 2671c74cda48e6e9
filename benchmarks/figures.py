"""Draw lines on a pair of axes, for the figures of docs/lineage.md."""

import pathlib
from collections.abc import Mapping, Sequence

# Dashes and markers, because some readers cannot tell the colours apart.
_STYLES = ("o-", "s--", "^-.", "D:", "v-", "P--", "X-.")


def save_lines(
    lines: Mapping[str, Sequence[tuple[float | str, float]]],
    labels: tuple[str, str],
    path: str,
    *,
    logarithmic: bool = False,
) -> None:
    """Draw named lines of points into an SVG or PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for (name, points), style in zip(lines.items(), _STYLES, strict=False):
        axes.plot(*zip(*points, strict=True), style, label=name, markersize=4, linewidth=1.4)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(True, color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.endswith(".svg") else None)
