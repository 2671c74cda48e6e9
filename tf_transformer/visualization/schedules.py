"""Learning rates over the steps of training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tf_transformer.visualization.curves import checked_curves, draw_curves, new_panel
from tf_transformer.visualization.labels import set_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_schedules(
    curves: Mapping[str, Sequence[float]], steps: Sequence[float] | None = None, title: str = ""
) -> "Figure":
    """Several schedules in one panel.

    Args:
        curves: Labels, such as "d_model 512, warm-up 4000", and the learning rates of each.
        steps: The step of each rate; None for 1, 2, …, the first update being step 1.
        title: Above the figure.

    Raises:
        ValueError: A curve has another length than `steps`, or holds no numbers.
        PlotError: matplotlib is missing.
    """
    arrays, steps = checked_curves(curves, steps, "steps")
    axes = new_panel(8.0, list(arrays))
    from matplotlib.ticker import EngFormatter

    draw_curves(axes, arrays, steps)
    axes.set(xlabel="step", ylabel="learning rate")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=True)
    set_title(axes, title)
    return axes.figure
