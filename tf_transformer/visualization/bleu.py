"""BLEU of sentences by their length."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tf_transformer.visualization.curves import checked_curves, draw_curves, new_panel
from tf_transformer.visualization.labels import checked_tokens, readable_names, set_title
from tf_transformer.visualization.matrices import as_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_bleu_by_length(
    lengths: Sequence[str],
    curves: Mapping[str, Sequence[float]],
    sentences: Sequence[int] | None = None,
    title: str = "",
    unit: str = "words",
) -> "Figure":
    """A curve for each system; compare figure 2 of Bahdanau et al. (2015).

    Args:
        lengths: Names of the N groups of sentences, such as "1–10", shortest first.
        curves: Labels of the systems, and the BLEU of each group, from 0 to 100; NaN is a gap.
        sentences: How many sentences each group has; below its name.
        title: Above the figure.
        unit: What the length of a source counts.

    Raises:
        ValueError: A curve or `sentences` has another length, or a BLEU is not from 0 to 100.
        PlotError: matplotlib is missing.
    """
    lengths = checked_tokens("lengths", lengths)
    arrays, places = checked_curves(curves, range(len(lengths)), "lengths")
    if any(((values < 0) | (values > 100)).any() for values in arrays.values()):
        raise ValueError("curves must hold BLEU from 0 to 100.")
    names, style = readable_names(lengths)
    if sentences is not None:
        counts = as_numbers("sentences", sentences)
        if counts.shape != places.shape:
            raise ValueError(
                f"sentences must have {len(lengths)} numbers, one for each of lengths; "
                f"received shape {counts.shape}."
            )
        names = [f"{name}\nn = {count:g}" for name, count in zip(names, counts, strict=True)]
    axes = new_panel(min(max(6.0, 2.0 + 0.8 * len(lengths)), 16.0), list(arrays))
    draw_curves(axes, arrays, places)
    every = max(1, -(-len(names) // 20))
    axes.set_xticks(places[::every], names[::every], **style)
    axes.set(xlabel=f"source length ({unit})", ylabel="BLEU")
    axes.set_ylim(bottom=0)
    set_title(axes, title)
    return axes.figure
