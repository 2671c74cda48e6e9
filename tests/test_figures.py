"""The figures: what is drawn, not how it looks."""

import importlib.util
import io
import sys
import warnings

import matplotlib.image
import ml_dtypes
import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.errors import InputError
from tf_transformer.visualization import (
    plot_alignments,
    plot_attention,
    plot_heads,
    plot_mask,
    plot_masks,
)

TOKENS = ["▁Zwei", "▁Hunde", "▁spielen", "</s>"]
WEIGHTS = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.2, 0.5, 0.1], [0.0, 0.3, 0.3, 0.4]])
# Each function draws any tokens.
OF_TOKENS = {
    "attention": lambda tokens: plot_attention(np.eye(len(tokens)), tokens, title="title " * 40),
    "alignments": lambda tokens: plot_alignments(
        {"$a_$": np.eye(len(tokens)), "b": np.eye(len(tokens))}, tokens, tokens, "$a_$ \\frac{"
    ),
    "heads": lambda tokens: plot_heads(np.ones((2, 3, len(tokens), len(tokens))), tokens),
    "masks": lambda tokens: plot_masks({"a": np.tri(len(tokens))}, tokens),
}


def written(figure):
    """The figure as a file, drawn without a warning."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(file)
    return file.getvalue()


def image(axes):
    (drawn,) = axes.images
    return np.ma.filled(drawn.get_array(), np.nan)


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def labels(axes):
    return axes.get_ylabel(), axes.get_xlabel()


# Attention


def test_attention_has_queries_as_rows_from_above_and_keys_as_columns():
    figure = plot_attention(WEIGHTS, ["a", "b", "c"], TOKENS, title="Layer 3")
    axes, scale = figure.axes
    np.testing.assert_array_equal(image(axes), WEIGHTS)
    assert (ticks(axes.yaxis), ticks(axes.xaxis)) == (["a", "b", "c"], TOKENS)
    assert axes.yaxis_inverted() and not axes.xaxis_inverted()
    assert labels(axes) == ("query", "key")
    assert (figure.get_suptitle(), scale.get_ylabel()) == ("Layer 3", "attention weight")
    assert axes.images[0].get_clim() == (0, 1)


def test_alignments_of_several_models_frame_the_largest_weight_of_each_target_token():
    one = np.vstack([WEIGHTS, [[np.nan] * 4, [0] * 4]])
    figure = plot_alignments({"one": one, "two": one[::-1]}, TOKENS, list("abcde"), "both")
    *panels, _ = figure.axes
    frames = [[(patch.get_y() + 0.5, patch.get_x() + 0.5) for patch in p.patches] for p in panels]
    assert frames == [[(0, 0), (1, 2), (2, 3)], [(2, 3), (3, 2), (4, 0)]]
    for axes, expected in zip(panels, (one, one[::-1]), strict=True):
        np.testing.assert_array_equal(image(axes), expected)
        assert axes.patch.get_hatch(), "NaN looks like 0"
    assert [axes.get_title() for axes in panels] == ["one", "two"]
    assert [labels(axes) for axes in panels] == [("target", "source"), ("", "source")]
    assert (ticks(panels[0].yaxis), ticks(panels[0].xaxis)) == (list("abcde"), TOKENS)


def test_every_head_of_every_layer_has_its_panel():
    weights = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3, 2)).astype(ml_dtypes.bfloat16)
    *panels, _ = plot_heads(list(weights), ["a", "b"], TOKENS, largest=0.5).axes
    for axes, expected in zip(panels, weights.reshape(6, 2, 4), strict=True):
        np.testing.assert_array_equal(image(axes), expected)
        assert axes.images[0].get_clim() == (0, 0.5)
    assert [axes.get_title() for axes in panels[:3]] == ["head 0", "head 1", "head 2"]
    assert [axes.get_ylabel() for axes in panels[::3]] == ["layer 0\nquery", "layer 1\nquery"]
    assert ticks(panels[3].yaxis) == ["a", "b"] and ticks(panels[3].xaxis) == TOKENS
    assert plot_heads(weights[:1], ["a", "b"], TOKENS).axes[0].get_ylabel() == "query"


# Masks


def test_a_permutation_mask_is_drawn_as_known():
    # In the order <s> 迎 京 你 欢 北 <e>: when each token of `<s> 北 京 欢 迎 你 <e>` is generated.
    mask = tt.permutation_mask(np.array([[0, 5, 2, 4, 1, 3, 6]]))
    tokens = ["<s>", "a", "b", "c", "d", "e", "<e>"]
    (axes,) = plot_mask(mask, tokens[1:], tokens[:-1]).axes
    rows = ["101111", "100010", "101011", "100000", "101010", "111111"]
    assert ["".join(str(int(cell)) for cell in row) for row in image(axes)] == rows
    assert ticks(axes.yaxis) == tokens[1:] and ticks(axes.xaxis) == tokens[:-1]


# Any tokens

LABELS = {text: text for text in ("▁Straße", "كلب", "$x_$", "", "Z\u0338\u030f")} | {
    "a b": "a▁b", "\ud800": "<U+D800>", "\u202eab": "<U+202E>ab",
    "\n\u2028\u3000\u00a0": "▁▁▁▁", "abcdefghijklmnopqrstuvwxyz": "abcdefghij…vwxyz",
}  # fmt: skip


@pytest.mark.parametrize("draw", OF_TOKENS.values(), ids=OF_TOKENS)
def test_any_tokens_can_be_drawn_in_full_and_no_figure_grows_without_end(draw, caplog, tmp_path):
    figure = draw(list(LABELS))
    assert written(figure)
    if figure.axes[0].images:
        assert ticks(figure.axes[0].xaxis) in (list(LABELS.values()), [])
    assert written(draw(["a"]))
    assert not caplog.records
    assert max(draw([f"token{index}" for index in range(300)]).get_size_inches()) <= 30
    figure = draw([f"token {index}" for index in range(8)])
    figure.savefig(tmp_path / "f.png", bbox_inches="tight", pad_inches=0.1)
    pixels = matplotlib.image.imread(tmp_path / "f.png")[..., :3]
    for edge in (pixels[:5], pixels[-5:], pixels[:, :5], pixels[:, -5:]):
        assert (edge == 1).all(), "a label is cut off"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plot_attention(WEIGHTS.T, list("abc"), TOKENS), r"each query token.*\(4, 3\)"),
        (lambda: plot_attention(WEIGHTS * 9, list("abc"), TOKENS), "0 to 1.*softmax"),
        (lambda: plot_mask(np.ones((2, 3, 3)), list("abc")), r"\(1,3,3\)"),
    ],
)
def test_what_would_be_drawn_wrong_is_an_error(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_missing_matplotlib_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tf_transformer.visualization")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install matplotlib"):
        importlib.import_module("tf_transformer.visualization")
