"""The tree of a beam search."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tf_transformer.visualization.figures import new_figure
from tf_transformer.visualization.labels import checked_tokens, readable_tokens, set_title, width
from tf_transformer.visualization.matrices import as_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WINNER, _FINISHED, _PRUNED = "#a63603", "#08519c", "0.45"
_SAME = 1e-3
_LEVEL = 0.7  # the part of an edge that is level, for its token


class BeamHypothesis(NamedTuple):
    """A path from the root of the tree to a leaf.

    Attributes:
        tokens: Its tokens, the end too where it ended.
        log_probs: The log-probability of each.
        finished: Whether it ended; the others were pruned.
        score: By which the best is chosen, see `beam_score`; None for the sum of `log_probs`.
    """

    tokens: Sequence[str]
    log_probs: Sequence[float]
    finished: bool
    score: float | None = None


class _Node:
    """A token in the tree; the root is none."""

    def __init__(self, depth: int = 0, log_prob: float = 0.0, total: float = 0.0) -> None:
        self.depth = depth
        self.log_prob = log_prob
        self.total = total
        self.children: dict[str, _Node] = {}
        self.height = 0.0
        self.is_finished = False  # some hypothesis through it ended
        self.is_best = False
        self.hypothesis: BeamHypothesis | None = None  # that ends here


def plot_beam(hypotheses: Sequence[BeamHypothesis], title: str = "") -> "Figure":
    """Hypotheses as a tree that grows to the right, the more probable child above.

    A token stands on its edge, and below it the sum of the log-probabilities from the root.
    Finished hypotheses end in a square, pruned ones in a cross on a dashed edge, and the finished
    one of the highest score in a star.

    Args:
        hypotheses: `BeamHypothesis`, or tuples like it.
        title: Above the figure.

    Raises:
        ValueError: A hypothesis has not one log-probability for each token, one is NaN or greater
            than 0, or hypotheses that begin with the same tokens differ in theirs.
        PlotError: matplotlib is missing.
    """
    checked = [_checked(number, given) for number, given in enumerate(hypotheses)]
    root = _tree(checked)
    nodes = list(_walk(root))
    depth = max(node.depth for _, _, node in nodes)
    leaves = _place(root)
    (tokens,), style = readable_tokens([token for token, _, _ in nodes])
    letters = max(map(width, tokens)) + 1
    step, line = min(0.4 + 0.09 * letters, 26.0 / max(depth, 1)), min(0.45, 24.0 / leaves)
    figure = new_figure(max(step * depth, 2.0) + 1.0, max(line * leaves, 0.6) + 1.4)
    axes = figure.subplots()
    # The letters of a line and of an edge must fit.
    font = float(np.clip(72 * min(0.35 * line, _LEVEL * step / (0.65 * letters)), 4, 9))
    if checked:
        for token, (_, parent, node) in zip(tokens, nodes, strict=True):
            _draw_node(axes, token, parent, node, font, style)
    else:
        axes.text(0.5, 0.5, "no hypotheses", ha="center", transform=axes.transAxes)
    axes.set_xlim(-0.3, depth + 0.6)
    axes.set_ylim(-0.7, leaves - 0.3)
    axes.set(xlabel="step", yticks=[], xticks=range(0, depth + 1, 1 + depth // 20))
    axes.spines[["left", "top", "right"]].set_visible(False)
    _add_legend(figure, nodes)
    set_title(axes, title)
    return figure


def _checked(number, given):
    where = f"hypothesis {number}"
    try:
        tokens, log_probs, finished, score = BeamHypothesis(*given)
    except TypeError:
        raise ValueError(f"{where} must have tokens, log_probs and finished.") from None
    tokens = checked_tokens(f"the tokens of {where}", tokens)
    log_probs = as_numbers(f"the log_probs of {where}", log_probs)
    if log_probs.shape != (len(tokens),):
        raise ValueError(
            f"{where} must have a log-probability for each of its {len(tokens)} tokens; "
            f"received shape {log_probs.shape}."
        )
    if not (log_probs <= _SAME).all():
        raise ValueError(f"{where} must have log-probabilities, at most 0; received {log_probs}.")
    score = as_numbers(f"the score of {where}", log_probs.sum() if score is None else score)
    if score.shape != () or np.isnan(score):
        raise ValueError(f"the score of {where} must be a number; received {score}.")
    return BeamHypothesis(tokens, log_probs, bool(finished), float(score))


def _tree(hypotheses):
    """The root; prefixes that hypotheses share are one path."""
    root = _Node()
    finished = [hypothesis for hypothesis in hypotheses if hypothesis.finished]
    best = max(finished, key=lambda hypothesis: hypothesis.score, default=None)
    root.is_finished, root.is_best = bool(finished), best is not None
    for number, hypothesis in enumerate(hypotheses):
        node = root
        for token, log_prob in zip(hypothesis.tokens, hypothesis.log_probs, strict=True):
            known = node.children.get(token)
            if known is None:
                known = _Node(node.depth + 1, log_prob, node.total + log_prob)
                node.children[token] = known
            elif not np.isclose(known.log_prob, log_prob, atol=_SAME):
                raise ValueError(
                    f"hypothesis {number} has {log_prob:g} for token {known.depth}, "
                    f"{token[:40]!r}, where another with the same beginning has {known.log_prob:g}."
                )
            node = known
            node.is_finished |= hypothesis.finished
            node.is_best |= hypothesis is best
        if node.hypothesis is None or hypothesis is best:
            node.hypothesis = hypothesis
    return root


def _walk(root) -> Iterator[tuple[str, _Node, _Node]]:
    """Token, parent and node of the whole tree, parents first; the root is its own parent."""
    waiting = [("", root, root)]
    while waiting:
        token, parent, node = waiting.pop()
        yield token, parent, node
        waiting += [(token, node, child) for token, child in node.children.items()]


def _place(root):
    """Gives each node its height, and returns the number of leaves."""
    nodes, waiting = [], [root]
    leaves = 0
    while waiting:  # no recursion, since hypotheses may be long
        node = waiting.pop()
        nodes.append(node)
        children = sorted(node.children.values(), key=lambda child: -child.log_prob)
        if not children:
            node.height = leaves
            leaves += 1
        waiting += children
    for node in reversed(nodes):
        if node.children:
            node.height = np.mean([child.height for child in node.children.values()])
    return leaves


def _draw_node(axes: "Axes", token, parent, node, font, style: dict[str, Any]) -> None:
    colour = _WINNER if node.is_best else _FINISHED if node.is_finished else _PRUNED
    if node is not parent:
        axes.plot(
            [parent.depth, node.depth - _LEVEL, node.depth],
            [parent.height, node.height, node.height],
            "-" if node.is_finished else "--", color=colour,
            linewidth=2.2 if node.is_best else 1.0, zorder=1,
        )  # fmt: skip
        middle = node.depth - 0.5 * _LEVEL, node.height
        where = {"textcoords": "offset points", "ha": "center", "zorder": 3}
        axes.annotate(token, middle, (0, 1.5), va="bottom", fontsize=font, **where, **style)
        total = f"{node.total:.2f}"
        axes.annotate(total, middle, (0, -2), va="top", fontsize=0.8 * font, color="0.25", **where)
    marker = "o"
    if node.hypothesis is not None:
        goes_on = any(child.is_best for child in node.children.values())
        is_best = node.is_best and not goes_on
        marker = "*" if is_best else "s" if node.hypothesis.finished else "X"
    axes.plot(node.depth, node.height, marker, color=colour, zorder=2,
              markersize={"*": 12, "o": 4}.get(marker, 7))  # fmt: skip


def _add_legend(figure: "Figure", nodes) -> None:
    from matplotlib.lines import Line2D

    ends = [node for _, _, node in nodes if node.hypothesis is not None]
    kinds = {
        "best": ("*", "-", _WINNER, any(node.is_best for node in ends)),
        "finished": ("s", "-", _FINISHED, any(n.is_finished and not n.is_best for n in ends)),
        "pruned": ("X", "--", _PRUNED, any(not node.hypothesis.finished for node in ends)),
    }
    shown = {name: kind for name, kind in kinds.items() if kind[-1]}
    lines = [Line2D([], [], marker=m, linestyle=s, color=c) for m, s, c, _ in shown.values()]
    if lines:
        figure.legend(lines, list(shown), loc="outside lower center", ncols=3, frameon=False)
