"""Attention masks: who may attend to whom."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_transformer.visualization.figures import require_matplotlib
from tf_transformer.visualization.labels import checked_tokens
from tf_transformer.visualization.matrices import as_numbers, draw_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HIDDEN, _ALLOWED = "white", "#33527a"


def plot_mask(
    mask: Any, queries: Sequence[str], keys: Sequence[str] | None = None, title: str = ""
) -> "Figure":
    """A mask of any kind: queries are rows, keys columns, and dark is where one may attend.

    Args:
        mask: bool, or 0 and 1, `(T, S)`, True where a query may attend to a key. As of the
            functions in `layers/masks.py` it may have a leading axis of size 1, and size 1 where
            all queries may attend to the same keys.
        queries: The T tokens that attend.
        keys: The S tokens attended to; None for the same tokens.
        title: Above the figure.

    Raises:
        ValueError: The mask does not fit the tokens, or is none.
        PlotError: matplotlib is missing.
    """
    return plot_masks({"": mask}, queries, keys, title)


def plot_masks(
    masks: Mapping[str, Any],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
) -> "Figure":
    """Masks over the same tokens, side by side; see `plot_mask`.

    Args:
        masks: Names, and a mask of each.
        queries: The T tokens that attend.
        keys: The S tokens attended to; None for the same tokens.
        title: Above the figure.

    Raises:
        ValueError: There is no mask, or one does not fit the tokens.
        PlotError: matplotlib is missing.
    """
    queries = checked_tokens("queries", queries)
    keys = queries if keys is None else checked_tokens("keys", keys)
    if not masks:
        raise ValueError("masks must name at least one mask; received none.")
    matrices = {name: _checked(mask, (len(queries), len(keys))) for name, mask in masks.items()}
    require_matplotlib()
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ListedColormap([_HIDDEN, _ALLOWED])
    figure, _ = draw_panels(
        matrices, (queries, keys), ("query", "key"), title, below=0.3,
        cmap=colours, vmin=0, vmax=1, interpolation="nearest",
    )  # fmt: skip
    patches = [Patch(facecolor=colour, edgecolor="0.5") for colour in (_ALLOWED, _HIDDEN)]
    figure.legend(patches, ["may attend", "hidden"], loc="outside lower center", ncols=2,
                  frameon=False)  # fmt: skip
    return figure


def _checked(mask, shape):
    array = as_numbers("mask", mask)
    given = array.shape
    if not np.isin(array, (0, 1)).all():
        raise ValueError("mask must be bool, or 0 and 1, True where a query may attend to a key.")
    if array.size == 0 and 0 in shape:
        array = array.reshape(shape)
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2 or any(
        size not in (1, wanted) for size, wanted in zip(array.shape, shape, strict=True)
    ):
        raise ValueError(
            f"mask must have shape (queries, keys) = {shape}, one for each token, or 1 for all; "
            f"received shape {given}. Take one sentence of a batch."
        )
    return np.broadcast_to(array, shape)
