"""The tree of a beam search."""

from collections import defaultdict, namedtuple
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tf_transformer.visualization.figure import new_figure, spell, text_style, width

_LEVEL = 0.7  # the horizontal part of an edge, on which its token stands


class BeamHypothesis(NamedTuple):
    """A path from the root of the tree; a finished hypothesis has the end token last.

    A hypothesis that is not finished was pruned. The best finished one has the highest `score`,
    where None means the sum of `log_probs`.

    Example:
        >>> from tf_transformer import visualization
        >>> found = visualization.BeamHypothesis(["the", "house"], [-0.5, -0.25], finished=False)
        >>> sum(found.log_probs)
        -0.75
    """

    tokens: Sequence[str]
    log_probs: Sequence[float]
    finished: bool
    score: float | None = None


# The style of a hypothesis: the line of its path, and the marker at its end.
_Kind = namedtuple("_Kind", "name colour line line_width marker marker_size")
_BEST = _Kind("best", "#a63603", "-", 2.2, "*", 12)
_FINISHED = _Kind("finished", "#08519c", "-", 1.0, "s", 7)
_PRUNED = _Kind("pruned", "0.45", "--", 1.0, "X", 7)

_Prefix = tuple[str, ...]  # the tokens from the root to a node of the tree


def plot_beam(hypotheses: Sequence[BeamHypothesis], title: str = "") -> Figure:
    """Plot hypotheses as a tree that grows to the right, the more probable child above.

    Each edge has its token above it and the sum of the log-probabilities from the root below it.
    Finished hypotheses end in a square, pruned ones in a cross on a dashed edge, and the finished
    one with the highest score in a star. Hypotheses that begin with the same tokens share the path
    of these tokens.

    Example:
        >>> from tf_transformer import visualization
        >>> best = visualization.BeamHypothesis(["the", "house", "</s>"], [-0.5, -0.2, -0.2], True)
        >>> pruned = visualization.BeamHypothesis(["the", "home"], [-0.5, -2.0], False)
        >>> visualization.plot_beam([best, pruned])
        <Figure ...>
    """
    totals: dict[_Prefix, float] = {(): 0.0}
    kinds: dict[_Prefix, _Kind] = {(): _PRUNED}
    ends: dict[_Prefix, _Kind] = {}
    finished = [hypothesis for hypothesis in hypotheses if hypothesis.finished]
    best = max(
        finished, key=lambda h: sum(h.log_probs) if h.score is None else h.score, default=None
    )
    # Pruned hypotheses come first and the best comes last: the last one styles a shared path.
    for hypothesis in sorted(hypotheses, key=lambda other: (other is best, other.finished)):
        kind = _BEST if hypothesis is best else _FINISHED if hypothesis.finished else _PRUNED
        prefix = ()
        for token, log_prob in zip(hypothesis.tokens, hypothesis.log_probs, strict=True):
            kinds[prefix], before = kind, totals[prefix]
            prefix = (*prefix, token)
            totals[prefix] = before + log_prob
        kinds[prefix] = ends[prefix] = kind

    heights, num_leaves = _heights(totals)
    depth = max(map(len, totals))
    # Each step is as wide, in inches, as its longest token needs.
    letters = np.ones(depth + 1)
    for prefix in filter(None, totals):
        letters[len(prefix)] = max(letters[len(prefix)], 1 + width(spell(prefix[-1])))
    steps = 0.3 + 0.09 * letters
    steps *= min(1, 26.0 / steps[1:].sum()) if depth else 1
    places, line = np.cumsum([0.0, *steps[1:]]), min(0.45, 24.0 / num_leaves)
    # Letters must fit the height of a line and the length of an edge.
    font = float(np.clip(72 * min(0.35 * line, *(_LEVEL * steps / (0.65 * letters))), 4, 9))
    figure = new_figure(max(places[-1], 2.0) + 1.0, max(line * num_leaves, 0.6) + 1.4, title)
    axes = figure.subplots()
    for prefix, total in totals.items():
        kind, end = kinds[prefix], ends.get(prefix)
        x, y = places[len(prefix)], heights[prefix]
        if prefix:
            level = _LEVEL * steps[len(prefix)]
            edge = [places[len(prefix) - 1], x - level, x], [heights[prefix[:-1]], y, y]
            axes.plot(*edge, kind.line, color=kind.colour, linewidth=kind.line_width, zorder=1)
            where = {"xy": (x - level / 2, y), "textcoords": "offset points", "ha": "center"}
            token_style = {"va": "bottom", "fontsize": font, **text_style()}
            axes.annotate(spell(prefix[-1]), xytext=(0, 1.5), **where, **token_style)
            total_style = {"va": "top", "fontsize": 0.8 * font, "color": "0.25"}
            axes.annotate(f"{total:.2f}", xytext=(0, -2), **where, **total_style)
        marker, size = (end.marker, end.marker_size) if end else ("o", 4)
        axes.plot(x, y, marker, color=kind.colour, markersize=size, zorder=2)
    axes.set_xlim(-0.2, places[-1] + 0.4)
    axes.set_ylim(0.3 - num_leaves, 0.7)
    every = 1 + depth // 20
    axes.set_xticks(places[::every], range(0, depth + 1, every))
    axes.set(xlabel="step", yticks=[])
    axes.spines[["left", "top", "right"]].set_visible(False)
    shown = [kind for kind in (_BEST, _FINISHED, _PRUNED) if kind in ends.values()]
    keys = [Line2D([], [], marker=k.marker, linestyle=k.line, color=k.colour) for k in shown]
    names = [kind.name for kind in shown]
    figure.legend(keys, names, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _heights(totals: dict[_Prefix, float]) -> tuple[dict[_Prefix, float], int]:
    """Return the height of each node, with the top leaf at 0, and the number of leaves."""
    children = defaultdict(list)
    for prefix in filter(None, totals):
        children[prefix[:-1]].append(prefix)

    # Siblings share a prefix, so totals sort them as log-probabilities do.
    def path(leaf: _Prefix) -> list[tuple[float, _Prefix]]:
        return [(-totals[leaf[:end]], leaf[:end]) for end in range(1, len(leaf) + 1)]

    leaves = sorted(totals.keys() - children.keys(), key=path)
    heights = {leaf: -float(number) for number, leaf in enumerate(leaves)}
    for prefix in sorted(children, key=len, reverse=True):
        heights[prefix] = np.mean([heights[child] for child in children[prefix]])
    return heights, len(leaves)
