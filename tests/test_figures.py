"""The figures: what is drawn, not how it looks."""

import importlib.util
import io
import subprocess
import sys
import warnings

import matplotlib.image
import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer import visualization
from tf_transformer.visualization import (
    BeamHypothesis,
    PlotError,
    labels,
    plot_alignment,
    plot_alignments,
    plot_attention,
    plot_beam,
    plot_bleu_by_length,
    plot_heads,
    plot_mask,
    plot_masks,
    plot_position_similarity,
    plot_positions,
    plot_schedules,
    plot_smoothed_loss,
    plot_target_distribution,
    save_figure,
)

TOKENS = ["▁Zwei", "▁Hunde", "▁spielen", "</s>"]
WEIGHTS = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.2, 0.5, 0.1], [0.0, 0.3, 0.3, 0.4]])
# Each takes a list of any tokens.
OF_TOKENS = {
    "attention": lambda tokens: plot_attention(np.eye(len(tokens)), tokens, title=joined(tokens)),
    "alignment": lambda tokens: plot_alignment(np.eye(len(tokens)), tokens, tokens),
    "alignments": lambda tokens: plot_alignments(
        {joined(tokens): np.eye(len(tokens)), "b": np.eye(len(tokens))}, tokens, tokens
    ),
    "heads": lambda tokens: plot_heads(
        np.ones((2, 3, len(tokens), len(tokens))), tokens, title=joined(tokens)
    ),
    "masks": lambda tokens: plot_masks(
        {joined(tokens): np.tri(len(tokens)), "b": np.eye(len(tokens))}, tokens
    ),
    "mask": lambda tokens: plot_mask(np.tri(len(tokens)), tokens, title=joined(tokens)),
    "positions": lambda tokens: plot_positions(np.ones((len(tokens), 4)), title=joined(tokens)),
    "similarity": lambda tokens: plot_position_similarity(np.ones((len(tokens), 4))),
    "schedules": lambda tokens: plot_schedules(
        {token: [0.1, 0.2, np.nan] for token in tokens}, title=joined(tokens)
    ),
    "target": lambda tokens: plot_target_distribution(np.eye(len(tokens)), tokens, tokens),
    "loss": lambda tokens: plot_smoothed_loss([0.1, 0.9], {token: [2.0, 1.0] for token in tokens}),
    "beam": lambda tokens: plot_beam(
        [BeamHypothesis(tokens, [-0.1] * len(tokens), True), (["x"], [-1.0], False)],
        title=joined(tokens),
    ),
    "bleu": lambda tokens: plot_bleu_by_length(
        tokens, {"x": [20.0] * len(tokens), "y": [np.nan] * len(tokens)}, [3] * len(tokens)
    ),
}
EVERY_FIGURE = pytest.mark.parametrize("draw", OF_TOKENS.values(), ids=OF_TOKENS)


def joined(tokens):
    return " ".join(tokens)


def written(figure, kind="png"):
    """The figure as a file, drawn without a warning."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(file, format=kind)
    return file.getvalue()


def image(axes):
    (drawn,) = axes.images
    return np.ma.filled(drawn.get_array(), np.nan)


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def named(axes):
    """The labels of the legend."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


# --- Attention ------------------------------------------------------------------------------


def test_attention_has_queries_as_rows_from_above_and_keys_as_columns():
    figure = plot_attention(WEIGHTS, ["a", "b", "c"], TOKENS, title="Layer 3")
    axes, scale = figure.axes
    np.testing.assert_array_equal(image(axes), WEIGHTS)
    assert (ticks(axes.yaxis), ticks(axes.xaxis)) == (["a", "b", "c"], TOKENS)
    assert axes.yaxis_inverted() and not axes.xaxis_inverted()
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("query", "key")
    assert (axes.get_title(), scale.get_ylabel()) == ("Layer 3", "attention weight")
    assert axes.images[0].get_clim() == (0, 1)


def test_the_darkest_weight_may_be_the_largest():
    (drawn,) = plot_attention(WEIGHTS, "a b c".split(), TOKENS, largest=None).axes[0].images
    assert drawn.get_clim() == (0, 0.7)
    # A heavier weight is darker, in grey too.
    greys = drawn.cmap(drawn.norm(np.linspace(0, 0.7, 9)))[:, :3]
    assert (np.diff(greys @ [0.299, 0.587, 0.114]) < 0).all()


@pytest.mark.parametrize(
    ("largest", "labels"),
    [(1, "0 0.2 0.4 0.6 0.8 1"), (0.83, "0 0.2 0.4 0.6 0.8"), (0.004, "0 0.001 0.002 0.003 0.004")],
)
def test_the_scale_of_weights_has_round_numbers(largest, labels):
    weights = WEIGHTS / WEIGHTS.max() * largest
    _, scale = plot_attention(weights, "a b c".split(), TOKENS, largest=None).axes
    assert ticks(scale.yaxis) == labels.split()


def test_the_alignment_frames_the_largest_weight_of_each_target_token():
    weights = np.vstack([WEIGHTS, [[np.nan] * 4, [0] * 4]])
    axes = plot_alignment(weights, TOKENS, ["a", "b", "c", "d", "e"]).axes[0]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("target", "source")
    frames = [(patch.get_y() + 0.5, patch.get_x() + 0.5) for patch in axes.patches]
    assert frames == [(0, 0), (1, 2), (2, 3)]


def test_alignments_of_several_models_stand_side_by_side():
    figure = plot_alignments({"one": WEIGHTS, "two": WEIGHTS[::-1]}, TOKENS, list("abc"), "both")
    *panels, scale = figure.axes
    for axes, expected in zip(panels, (WEIGHTS, WEIGHTS[::-1]), strict=True):
        np.testing.assert_array_equal(image(axes), expected)
        assert len(axes.patches) == 3 and ticks(axes.xaxis) == TOKENS
    assert [axes.get_title() for axes in panels] == ["one", "two"]
    assert [axes.get_ylabel() for axes in panels] == ["target", ""]
    assert ticks(panels[0].yaxis) == ["a", "b", "c"]
    assert (figure.get_suptitle(), scale.get_ylabel()) == ("both", "attention weight")


def test_masks_stand_side_by_side():
    masks = {"one": np.tri(3), "two": np.eye(3)}
    figure = plot_masks(masks, list("abc"))
    for axes, (name, mask) in zip(figure.axes, masks.items(), strict=True):
        np.testing.assert_array_equal(image(axes), mask)
        assert (axes.get_title(), ticks(axes.xaxis)) == (name, ["a", "b", "c"])
    assert [text.get_text() for text in figure.legends[0].texts] == ["may attend", "hidden"]


def test_every_head_of_every_layer_has_its_panel():
    weights = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3, 2))
    *panels, scale = plot_heads(list(weights), ["a", "b"], TOKENS).axes
    for axes, expected in zip(panels, weights.reshape(6, 2, 4), strict=True):
        np.testing.assert_array_equal(image(axes), expected)
        assert axes.images[0].get_clim() == (0, 1)
    assert [axes.get_title() for axes in panels[:3]] == ["head 0", "head 1", "head 2"]
    assert [axes.get_ylabel() for axes in panels[::3]] == ["layer 0\nquery", "layer 1\nquery"]
    assert ticks(panels[3].yaxis) == ["a", "b"] and ticks(panels[3].xaxis) == TOKENS
    assert plot_heads(weights[:1], ["a", "b"], TOKENS).axes[0].get_ylabel() == "query"
    assert scale.get_ylabel() == "attention weight"


def test_nan_is_told_apart_from_zero():
    weights = np.where(WEIGHTS == 0.5, np.nan, WEIGHTS)
    figure = plot_attention(weights, ["a", "b", "c"], TOKENS)
    np.testing.assert_array_equal(image(figure.axes[0]), weights)
    assert figure.axes[0].patch.get_hatch()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["NaN"]
    assert not plot_attention(WEIGHTS, ["a", "b", "c"], TOKENS).legends


# --- Masks and positions --------------------------------------------------------------------


def test_a_permutation_mask_is_drawn_as_known():
    # In the order <s> 迎 京 你 欢 北 <e>: when each token of `<s> 北 京 欢 迎 你 <e>` is generated.
    mask = tt.permutation_mask(np.array([[0, 5, 2, 4, 1, 3, 6]]))
    tokens = ["<s>", "a", "b", "c", "d", "e", "<e>"]
    (axes,) = plot_mask(mask, tokens[1:], tokens[:-1]).axes
    rows = ["101111", "100010", "101011", "100000", "101010", "111111"]
    assert ["".join(str(int(cell)) for cell in row) for row in image(axes)] == rows
    assert ticks(axes.yaxis) == tokens[1:] and ticks(axes.xaxis) == tokens[:-1]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (lambda: tt.padding_mask(np.array([[5, 6, 7, 0]]), 0), [[1, 1, 1, 0]] * 4),
        (lambda: tt.causal_mask(4), np.tri(4)),
        (lambda: tt.local_mask(4, 1), np.tri(4, 4, 1) * np.tri(4, 4, 1).T),
        (lambda: tt.prefix_mask(np.array([[0, 0, 1, 1]])), np.maximum(np.tri(4), [[1, 1, 0, 0]])),
    ],
    ids=["padding", "causal", "local", "prefix"],
)
def test_the_masks_of_the_layers_are_drawn(mask, expected):
    figure = plot_mask(mask(), TOKENS)
    np.testing.assert_array_equal(image(figure.axes[0]), expected)
    (legend,) = figure.legends
    dark, light = (patch.get_facecolor()[:3] for patch in legend.get_patches())
    assert [text.get_text() for text in legend.get_texts()] == ["may attend", "hidden"]
    assert sum(dark) < sum(light)


def test_positions_are_rows_and_dimensions_columns():
    table = tt.sinusoidal_positions(11, 20)
    axes, scale = plot_positions(table).axes
    assert ticks(scale.yaxis) == ["−1", "−0.5", "0", "0.5", "1"]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("position", "dimension")
    drawn = image(axes)
    np.testing.assert_allclose(drawn[1, :4], [0.841471, 0.540302, 0.387674, 0.921796], atol=1e-6)
    np.testing.assert_allclose(drawn[10, 4:8], [0.999901, -0.014096, 0.589918, 0.807463], atol=1e-6)


def test_the_similarity_of_sinusoids_depends_on_the_distance_alone():
    drawn = image(plot_position_similarity(tt.sinusoidal_positions(12, 16)).axes[0])
    for distance in range(12):
        np.testing.assert_allclose(np.diag(drawn, distance), drawn[0, distance], atol=1e-5)
    np.testing.assert_allclose(np.diag(drawn), 1, atol=1e-6)
    assert (drawn[0, 1:] < 1 - 1e-3).all()


def test_the_similarity_to_a_position_of_zeros_is_not_a_number():
    drawn = image(plot_position_similarity([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]).axes[0])
    assert np.isnan(drawn[1]).all() and np.isnan(drawn[:, 1]).all()
    assert drawn[0, 2] == pytest.approx(0.5**0.5)


# --- Curves ---------------------------------------------------------------------------------


def test_schedules_are_drawn_over_the_steps_from_one():
    steps = np.arange(10_000)  # updates before, as Keras counts
    curves = {
        "512 : 4000": tt.NoamSchedule(512, 4000)(steps),
        "256 : 4000": tt.NoamSchedule(256, 4000)(steps[:5000]),
    }
    (axes,) = plot_schedules(curves).axes
    found = {}
    for name, line in zip(named(axes), axes.get_lines(), strict=True):
        peak = np.argmax(line.get_ydata())
        found[name] = (line.get_xdata()[peak], line.get_ydata()[peak], len(line.get_xdata()))
    assert found == {
        "512 : 4000": (4000, pytest.approx(6.9877e-4, rel=1e-4), 10_000),
        "256 : 4000": (4000, pytest.approx(9.8821e-4, rel=1e-4), 5000),
    }
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "learning rate")
    looks = [(line.get_linestyle(), line.get_color()) for line in axes.get_lines()]
    assert len({style for style, _ in looks}) == 2


def test_the_smoothed_target_has_its_probabilities_written():
    other = 0.4 / 3
    matrix = [[0, other, 0.6, other, other], [0, 0.6, other, other, other], [0] * 5]
    vocabulary = ["<pad>", "1", "2", "3", "4"]
    axes, _ = plot_target_distribution(matrix, ["2", "1", "<pad>"], vocabulary).axes
    np.testing.assert_array_equal(image(axes), matrix)
    assert ticks(axes.xaxis) == vocabulary and ticks(axes.yaxis) == ["2", "1", "<pad>"]
    cells = {(*text.get_position(),): text.get_text() for text in axes.texts}
    assert (cells[2, 0], cells[1, 0], cells[0, 2]) == ("0.6", "0.13", "0")


def test_the_smoothed_loss_is_lowest_before_the_probability_one():
    xs = np.arange(1.0, 100)  # predicting [0, x/d, 1/d, 1/d, 1/d], d = x + 3, with smoothing 0.1
    true, other = xs / (xs + 3), 1 / (xs + 3)
    losses = 0.9 * np.log(0.9 / true) + 0.1 * np.log(0.1 / 3 / other)
    # In any order of the probabilities.
    (axes,) = plot_smoothed_loss(true[::-1], {"0.1": losses[::-1]}).axes
    line, dot = axes.get_lines()
    np.testing.assert_allclose(line.get_ydata()[[0, 98]], [0.95135, 0.05442], atol=1e-5)
    np.testing.assert_allclose(dot.get_xydata(), [[0.9, 0]], atol=1e-9)
    assert (np.diff(line.get_xdata()) > 0).all()


def test_bleu_by_length_has_a_curve_for_each_system():
    curves = {"RNNsearch": [28, 30, 29], "RNNenc": [26, 14, np.nan]}
    (axes,) = plot_bleu_by_length(["1–10", "11–20", "> 20"], curves, [812, 301, 7]).axes
    assert ticks(axes.xaxis) == ["1–10\nn = 812", "11–20\nn = 301", "> 20\nn = 7"]
    for line, values in zip(axes.get_lines(), curves.values(), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), values)
        assert line.get_marker() != "None"
    assert named(axes) == list(curves)
    assert axes.get_ylim()[0] == 0 and axes.get_ylabel() == "BLEU"


# --- Beams ----------------------------------------------------------------------------------

SEARCH = [
    BeamHypothesis(["the", "dog", "</s>"], [-0.5, -0.25, -0.25], True),
    BeamHypothesis(["the", "dog", "runs", "</s>"], [-0.5, -0.25, -0.5, -0.5], True),
    BeamHypothesis(["the", "cat"], [-0.5, -2.0], False),
    BeamHypothesis(["a"], [-3.0], False),
]


def tree(figure):
    """Tokens with the sums below them by place, and the places of the markers."""
    (axes,) = figure.axes
    texts = [(text.get_text(), text.xy) for text in axes.texts]
    edges = {place: [text for text, at in texts if at == place] for _, place in texts}
    markers = {}
    for line in axes.get_lines():
        if line.get_marker() != "None":
            (x,), (y,) = line.get_data()
            markers.setdefault(line.get_marker(), []).append((x, y))
    return edges, markers


def test_hypotheses_share_the_path_of_what_they_share():
    edges, markers = tree(plot_beam(SEARCH))
    assert sorted(edges.values()) == [
        ["</s>", "-1.00"], ["</s>", "-1.75"], ["a", "-3.00"], ["cat", "-2.50"], ["dog", "-0.75"],
        ["runs", "-1.25"], ["the", "-0.50"],
    ]  # fmt: skip
    depths = {kind: sorted(x for x, _ in places) for kind, places in markers.items()}
    assert depths == {"*": [3], "s": [4], "X": [1, 2], "o": [0, 1, 2, 3]}
    height = {texts[0]: y for (_, y), texts in edges.items()}
    assert height["dog"] > height["cat"] > height["a"]  # the more probable above


def test_the_score_chooses_the_best_of_the_finished_ones():
    scored = [h._replace(score=s) for h, s in zip(SEARCH, (-0.6, -0.5, -0.1, 0), strict=True)]
    _, markers = tree(plot_beam(scored))
    assert [x for x, _ in markers["*"]] == [4]
    _, markers = tree(plot_beam(SEARCH[2:]))
    assert "*" not in markers and "s" not in markers


def test_an_end_within_a_longer_hypothesis_keeps_its_mark():
    _, markers = tree(plot_beam([(["a"], [-1.0], True), (["a", "b"], [-1.0, -1.0], False)]))
    assert [x for x, _ in markers["*"]] == [1]


# --- Tokens of every kind -------------------------------------------------------------------


LABELS = {
    "▁Straße": "▁Straße",
    "Собака": "Собака",
    "a b": "a▁b",
    "$x_$": "$x_$",
    r"\frac{": r"\frac{",
    "_a": "_a",
    "": "",
    "\n": "<U+000A>",
    "\x00": "<U+0000>",
    "\ud800": "<U+D800>",
    "\u202eab": "<U+202E>ab",
    "\u2028": "<U+2028>",
    "\u3000\u00a0": "▁▁",
    "\ue000": "<U+E000>",
    "Z\u0338\u0359\u030f": "Z\u0338\u0359\u030f",
    "abcdefghijklmnopqrstuvwxyz": "abcdefghij…vwxyz",
    "x" * 100_000: "xxxxxxxxxx…xxxxx",
}


@EVERY_FIGURE
def test_any_token_can_be_drawn(draw, caplog):
    assert written(draw(list(LABELS)))
    for token in LABELS:
        draw([token])
    assert not caplog.records


def test_tokens_are_written_so_that_they_can_be_read():
    axes = plot_attention(np.eye(len(LABELS)), list(LABELS)).axes[0]
    assert ticks(axes.yaxis) == ticks(axes.xaxis) == list(LABELS.values())
    assert named(plot_schedules({"_a b": [1.0], "$x$": [1.0]}).axes[0]) == ["_a b", "$x$"]


def test_a_character_without_a_font_is_a_box_and_one_warning(monkeypatch, caplog):
    monkeypatch.setattr(labels, "_installed", list)
    labels._families.cache_clear()
    with pytest.warns(UserWarning) as caught:
        figure = plot_attention(np.eye(3), ["中文", "☃\u0978", "\u0978\u0978"])
    labels._families.cache_clear()
    (warning,) = caught
    assert "no installed font has" in str(warning.message)
    assert "2 other characters" in str(warning.message)
    assert ticks(figure.axes[0].yaxis) == ["□□", "☃□", "□□"]
    assert written(figure) and not caplog.records


def test_a_font_is_found_for_each_script(monkeypatch):
    fonts = {"Noto Sans A": "中", "Noto Sans Thai": "ไ", "Noto Serif": "中ไ"}
    monkeypatch.setattr(labels, "_installed", lambda: [(name, name) for name in fonts])
    has = labels._has
    monkeypatch.setattr(
        labels, "_has", lambda path, c: c in fonts[path] if path in fonts else has(path, c)
    )
    labels._families.cache_clear()
    _, style = labels.readable_tokens(["a"])
    assert style["fontfamily"] == ["sans-serif"]
    _, style = labels.readable_tokens(["aไ中"])
    assert style["fontfamily"] == ["sans-serif", "Noto Sans Thai", "Noto Sans A"]
    labels._families.cache_clear()


# --- Sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 30])
@EVERY_FIGURE
def test_any_number_of_tokens_can_be_drawn(draw, count):
    assert written(draw([f"t{index}" for index in range(count)]))


@EVERY_FIGURE
def test_no_figure_grows_without_end(draw):
    figure = draw([f"token{index}" for index in range(300)])
    assert max(figure.get_size_inches()) <= 30


def test_of_too_many_tokens_some_are_written_and_the_axis_says_so():
    axes = plot_attention(np.eye(500), [f"t{index}" for index in range(500)]).axes[0]
    assert ticks(axes.xaxis) == [f"t{index}" for index in range(0, 500, 4)]
    assert axes.get_xlabel() == "key (every 4th is written)"
    small, large = (plot_attention(np.eye(n), list("abcdefghij")[:n]) for n in (4, 10))
    assert (large.get_size_inches() > small.get_size_inches()).all()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_tokens_are_said_to_be_none(shape):
    figure = plot_attention(np.zeros(shape), ["q"] * shape[0], ["k"] * shape[1])
    assert [text.get_text() for text in figure.axes[0].texts] == ["no tokens"]
    assert written(figure)


# --- Bad input ------------------------------------------------------------------------------

BAD = {
    "transposed": (lambda: plot_attention(WEIGHTS.T, list("abc"), TOKENS), r"\(3, 4\).*\(4, 3\)"),
    "a str for tokens": (lambda: plot_attention(WEIGHTS, "abc", TOKENS), "queries.*received str"),
    "bytes": (lambda: plot_attention(WEIGHTS, [b"a"] * 3, TOKENS), "queries.*item 0 is bytes"),
    "None for tokens": (lambda: plot_attention(WEIGHTS, None), "queries.*NoneType"),
    "scores": (lambda: plot_attention(WEIGHTS * 9, list("abc"), TOKENS), "0 to 1.*softmax.*6.3"),
    "negative": (lambda: plot_attention(-WEIGHTS, list("abc"), TOKENS), "from 0 to 1"),
    "infinite": (lambda: plot_attention([[np.inf]], ["a"]), "0 to 1.*inf"),
    "ragged": (lambda: plot_attention([[1], [1, 2]], ["a", "b"]), "array of real numbers"),
    "text": (lambda: plot_attention([["x"]], ["a"]), "array of real numbers"),
    "complex": (lambda: plot_attention([[1j]], ["a"]), "array of real numbers"),
    "largest": (lambda: plot_attention([[1.0]], ["a"], largest=0), "largest.*received 0"),
    "alignment": (lambda: plot_alignment(WEIGHTS, list("abc"), TOKENS), r"\(target, source\)"),
    "no alignments": (lambda: plot_alignments({}, TOKENS, TOKENS), "at least one matrix"),
    "one layer": (lambda: plot_heads(np.ones((2, 3, 3)), list("abc")), "layers, heads.*(2, 3, 3)"),
    "no heads": (lambda: plot_heads(np.ones((1, 0, 1, 1)), ["a"]), "a head at least"),
    "no mask": (lambda: plot_mask(WEIGHTS, list("abc"), TOKENS), "bool, or 0 and 1"),
    "no masks": (lambda: plot_masks({}, ["a"]), "at least one mask"),
    "a batch": (lambda: plot_mask(np.ones((2, 3, 3)), list("abc")), "one sentence.*|(2, 3, 3)"),
    "small mask": (lambda: plot_mask(np.ones((2, 3)), list("abc")), r"\(3, 3\).*\(2, 3\)"),
    "a vector": (lambda: plot_positions(np.ones(3)), r"\(length, D\).*\(3,\)"),
    "an infinite table": (lambda: plot_positions([[np.inf]]), "finite"),
    "unequal curves": (lambda: plot_schedules({"x": [1, 2]}, [1, 2, 3]), "'x' must have 3.*2"),
    "a list of curves": (lambda: plot_schedules([[1, 2]]), "dict"),
    "infinite curves": (lambda: plot_schedules({"x": [np.inf]}), "'x' must be finite"),
    "unfit target": (
        lambda: plot_target_distribution(np.eye(2), ["a"], ["a", "b"]), r"\(1, 2\).*\(2, 2\)",
    ),
    "no distribution": (
        lambda: plot_target_distribution([[2.0]], ["a"], ["a"]), "probabilities",
    ),
    "percent": (lambda: plot_smoothed_loss([50, 90], {"x": [1, 2]}), "from 0 to 1"),
    "unfit beam": (lambda: plot_beam([(["a"], [-1, -2], True)]), r"hypothesis 0.*1 tokens.*\(2,\)"),
    "probabilities": (lambda: plot_beam([(["a"], [0.5], True)]), "hypothesis 0.*at most 0"),
    "NaN in a beam": (lambda: plot_beam([(["a"], [np.nan], True)]), "hypothesis 0.*at most 0"),
    "no hypothesis": (lambda: plot_beam(["a"]), "hypothesis 0 must have tokens, log_probs"),
    "a NaN score": (lambda: plot_beam([(["a"], [-1], True, np.nan)]), "score of hypothesis 0"),
    "two truths": (
        lambda: plot_beam([(["a", "b"], [-1, -1], True), (["a"], [-2], False)]),
        "hypothesis 1 has -2 for token 1, 'a'.*-1",
    ),
    "BLEU": (lambda: plot_bleu_by_length(["1"], {"x": [101]}), "BLEU from 0 to 100"),
    "counts": (lambda: plot_bleu_by_length(["1"], {"x": [1]}, [1, 2]), "sentences must have 1"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_an_error_of_one_line(call, words):
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "bfloat16", "float32"])
def test_numbers_of_any_type_are_drawn(dtype):
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    np.testing.assert_array_equal(
        image(plot_attention(np.eye(2).astype(kind), ["a", "b"]).axes[0]), np.eye(2)
    )


# --- matplotlib -----------------------------------------------------------------------------


@EVERY_FIGURE
def test_without_matplotlib_a_figure_says_so(draw, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    with pytest.raises(PlotError, match="pip install matplotlib"):
        draw(["a", "b"])


def test_a_figure_is_written_in_the_format_of_its_suffix(tmp_path):
    figure = plot_attention(WEIGHTS, ["a", "b", "c"], TOKENS)
    beginnings = {"png": b"\x89PNG", "PDF": b"%PDF", "svg": b"<?xml"}
    for suffix, beginning in beginnings.items():
        save_figure(figure, tmp_path / "new" / f"f.{suffix}")
        assert (tmp_path / "new" / f"f.{suffix}").read_bytes().startswith(beginning)
    with pytest.raises(PlotError, match=r"f\.xyz: must end in one of .*\.png"):
        save_figure(figure, tmp_path / "f.xyz")


@EVERY_FIGURE
def test_no_label_is_cut_off_in_a_file(draw, tmp_path):
    save_figure(draw([f"token {index}" for index in range(8)]), tmp_path / "f.png")
    pixels = matplotlib.image.imread(tmp_path / "f.png")[..., :3]
    for edge in (pixels[:5], pixels[-5:], pixels[:, :5], pixels[:, -5:]):
        assert (edge == 1).all()


def test_figures_need_no_window_and_no_keras():
    code = """
import sys
import numpy as np
from tf_transformer import visualization as v
figure = v.plot_attention(np.eye(2), ["a", "b"])
v.plot_beam([(["a"], [-1.0], True)])
v.plot_schedules({"a": [1.0]})
loaded = {"matplotlib.pyplot", "keras"} & set(sys.modules)
print(sorted(loaded))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("name", visualization.__all__)
def test_every_public_name_is_there(name):
    assert getattr(visualization, name).__name__ == name
