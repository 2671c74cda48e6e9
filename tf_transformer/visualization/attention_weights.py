"""Attention weights: of one head, of all heads, and as the alignment of two sentences."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tf_transformer.visualization.matrices import Scale, Tokens, draw_matrices

_SCALE = Scale("Greys", 1.0, "attention weight")


def plot_attention(
    weights: Any, queries: Tokens, keys: Tokens | None = None, title: str = ""
) -> Figure:
    """Plot the attention weights of one head: a row for each query, dark for a large weight.

    Args:
        weights: float `(T, S)`, from 0 to 1; NaN is hatched.
        queries: The T tokens that attend.
        keys: The S tokens that are attended to. None means the queries.

    Example:
        >>> from tf_transformer import visualization
        >>> visualization.plot_attention(np.eye(3), ["a", "big", "house"]).axes[0].get_ylabel()
        'query'
    """
    tokens = queries, queries if keys is None else keys
    return draw_matrices([[weights]], tokens, ("query", "key"), title, [""], _SCALE)[0]


def plot_heads(
    weights: Any, queries: Tokens, keys: Tokens | None = None, title: str = "", largest: float = 1.0
) -> Figure:
    """Plot the attention weights of every head: a row of panels for each layer.

    Args:
        weights: float `(layers, H, T, S)`, or a list of each layer's `(H, T, S)`.
        queries, keys, title: See `plot_attention`.
        largest: The weight that is drawn in black.

    Example:
        >>> from tf_transformer import visualization
        >>> _, weights = model(
        ...     {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2]])},
        ...     return_attention_scores=True,
        ... )
        >>> heads = [layer[0] for layer in weights["encoder"]]
        >>> visualization.plot_heads(heads, ["a", "b", "</s>"])
        <Figure ...>
    """
    tokens = queries, queries if keys is None else keys
    heads = [f"head {head}" for head in range(len(weights[0]))]
    cell = np.clip(2 / len(tokens[1]), 0.14, 0.22)  # legible labels where there are few
    scale = _SCALE._replace(largest=largest)
    figure, panels = draw_matrices(weights, tokens, ("query", "key"), title, heads, scale, cell)
    if len(panels) > 1:
        for layer, axes in enumerate(panels[:, 0]):
            axes.set_ylabel(f"layer {layer}\n{axes.get_ylabel()}")
    return figure


def plot_alignment(weights: Any, source: Tokens, target: Tokens, title: str = "") -> Figure:
    """Plot how much each target token attends to each source token, its largest weight framed.

    `Translator.align` returns the weights; compare figure 3 of Bahdanau et al. (2015).

    Args:
        weights: float `(T, S)`, from 0 to 1; NaN is hatched.
        source, target: The S subwords of the source, and the T subwords of the target.

    Example:
        >>> from tf_transformer import visualization
        >>> weights = np.array([[0.9, 0.1], [0.2, 0.8]])
        >>> visualization.plot_alignment(weights, ["das", "Haus"], ["the", "house"])
        <Figure ...>
    """
    return plot_alignments({"": weights}, source, target, title)


def plot_alignments(
    weights: Mapping[str, Any], source: Tokens, target: Tokens, title: str = ""
) -> Figure:
    """Plot alignments of one pair by several named models side by side; see `plot_alignment`.

    Example:
        >>> from tf_transformer import visualization
        >>> models = {"Bahdanau": np.eye(2), "Transformer": np.full((2, 2), 0.5)}
        >>> visualization.plot_alignments(models, ["das", "Haus"], ["the", "house"])
        <Figure ...>
    """
    matrices = list(weights.values())
    tokens, names = (target, source), ("target", "source")
    figure, panels = draw_matrices([matrices], tokens, names, title, list(weights), _SCALE)
    for axes, matrix in zip(panels[0], matrices, strict=True):
        for row, line in enumerate(np.nan_to_num(np.asarray(matrix, "float64"))):
            if line.any():
                corner = line.argmax() - 0.5, row - 0.5
                style = {"fill": False, "edgecolor": "tab:red", "linewidth": 1.5, "zorder": 3}
                axes.add_patch(Rectangle(corner, 1, 1, **style))
    return figure
