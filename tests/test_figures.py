"""The figures and `tf-transformer plot`: what is drawn, not how it looks."""

import io
import warnings

import matplotlib.image
import ml_dtypes
import numpy as np
import pytest
from commands import assert_refused, small_files

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.visualization import (
    BeamHypothesis,
    plot_alignments,
    plot_attention,
    plot_beam,
    plot_heads,
    plot_history,
    plot_mask,
    plot_masks,
    plot_positions,
    plot_schedules,
    save_figure,
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
    "beam": lambda tokens: plot_beam([BeamHypothesis(tokens, [-0.1] * len(tokens), True)]),
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


# Masks and positions


def test_a_permutation_mask_is_drawn_as_known():
    # In the order <s> 迎 京 你 欢 北 <e>: when each token of `<s> 北 京 欢 迎 你 <e>` is generated.
    mask = tt.permutation_mask(np.array([[0, 5, 2, 4, 1, 3, 6]]))
    tokens = ["<s>", "a", "b", "c", "d", "e", "<e>"]
    (axes,) = plot_mask(mask, tokens[1:], tokens[:-1]).axes
    rows = ["101111", "100010", "101011", "100000", "101010", "111111"]
    assert ["".join(str(int(cell)) for cell in row) for row in image(axes)] == rows
    assert ticks(axes.yaxis) == tokens[1:] and ticks(axes.xaxis) == tokens[:-1]


def test_positions_are_rows_and_steps_count_from_one():
    table = tt.sinusoidal_positions(11, 20)
    axes, _ = plot_positions(table).axes
    np.testing.assert_array_equal(image(axes), table)
    assert labels(axes) == ("position", "dimension")
    (axes,) = plot_schedules({"peak": [0.1, 0.3, 0.2]}).axes
    (line,) = axes.get_lines()
    assert list(zip(*line.get_data(), strict=True)) == [(1, 0.1), (2, 0.3), (3, 0.2)]


# Curves


def test_history_draws_each_metric_over_the_steps():
    log = [{"step": s, "loss": 9.0 - s, "val_loss": 9.5 - s, "val_perplexity": 2.0 * s,
            "val_bleu": 1.0 * s, "learning_rate": 0.1 * s} for s in (2, 4)]  # fmt: skip
    drawn = {}
    for axes in plot_history([("one", log), ("two", log[:1])]).axes:
        drawn[axes.get_title(loc="left")] = [
            (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()
        ]
        assert all(tick == int(tick) for tick in axes.get_xticks()), "there is no half step"
    assert drawn == {
        "Loss": [([2, 4], [7.0, 5.0]), ([2, 4], [7.5, 5.5]), ([2], [7.0]), ([2], [7.5])],
        "Validation BLEU": [([2, 4], [2.0, 4.0]), ([2], [2.0])],
        "Validation perplexity": [([2, 4], [4.0, 8.0]), ([2], [4.0])],
        "Learning rate": [([2, 4], [0.2, 0.4]), ([2], [0.2])],
    }


def test_a_learning_rate_is_drawn_between_validations():
    """In a resumed run it may rise from 0 and fall to 0 again."""
    log = [
        {
            "step": step,
            "learning_rate": 0.0,
            "training": [{"step": n, "loss": 1.0, "learning_rate": rate} for n, rate in rates],
        }
        for step, rates in ((4, [(1, 0.2), (3, 0.3)]), (6, [(5, 0.1)]))
    ]
    (line,) = plot_history([("resumed", log)]).axes[3].get_lines()
    expected = [(1, 0.2), (3, 0.3), (4, 0), (5, 0.1), (6, 0)]
    assert list(zip(*line.get_data(), strict=True)) == expected


# Beams

SEARCH = [
    BeamHypothesis(["the", "dog", "</s>"], [-0.5, -0.25, -0.25], True),
    BeamHypothesis(["the", "dog", "runs", "</s>"], [-0.5, -0.25, -0.5, -0.5], True),
    BeamHypothesis(["the", "cat"], [-0.5, -2.0], False),
    BeamHypothesis(["a"], [-3.0], False),
]


def tree(hypotheses):
    """Tokens with the sums below them by place, and the places of the markers, in steps."""
    (axes,) = plot_beam(hypotheses).axes
    texts = [(text.get_text(), text.xy) for text in axes.texts]
    edges = {place: [text for text, at in texts if at == place] for _, place in texts}
    markers = {}
    for line in axes.get_lines():
        if line.get_marker() != "None":
            (x,), (y,) = line.get_data()
            step = axes.get_xticks().tolist().index(x)
            markers.setdefault(line.get_marker(), []).append((step, y))
    return edges, markers


def test_hypotheses_share_the_path_of_what_they_share():
    edges, markers = tree(SEARCH)
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
    assert [x for x, _ in tree(scored)[1]["*"]] == [4]
    assert not {"*", "s"} & tree(SEARCH[2:])[1].keys()
    # An end within a longer hypothesis keeps its mark.
    longer = [BeamHypothesis(["a"], [-1.0], True), BeamHypothesis(["a", "b"], [-1.0, -1.0], False)]
    assert [x for x, _ in tree(longer)[1]["*"]] == [1]


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
    save_figure(draw([f"token {index}" for index in range(8)]), tmp_path / "new" / "f.png")
    pixels = matplotlib.image.imread(tmp_path / "new" / "f.png")[..., :3]
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


# The command


def test_plot_draws_the_curves_of_runs_that_have_a_log(tmp_path, capfd):
    run_dir, without = tmp_path / "$run_$", tmp_path / "mean"
    output = tmp_path / "new" / "curves.png"
    for run in (run_dir, without):
        run.mkdir()
        (run / "config.toml").touch()
    log = run_dir / "log.jsonl"
    log.write_text('{"step": 2, "loss": 1.0}\n', encoding="utf-8")
    assert cli.main(["plot", str(run_dir), str(without), f"--output={output}"]) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
    left_out = f"tf-transformer: {without} has no validation in its log, and is left out.\n"
    assert capfd.readouterr() == (f"{output}\n", left_out)
    assert_refused(["plot", run_dir, "--output=a.xyz"], ["a.xyz: must end in"], capfd, tmp_path)
    assert_refused(["plot", without], ["no run has a validation in its log"], capfd, tmp_path)
    with small_files(1000):
        assert cli.main(["plot", str(run_dir), f"--output={output}"]) == 2
    assert capfd.readouterr().err == f"tf-transformer: {output}: File too large.\n"
    log.write_text("[]\n", encoding="utf-8")
    assert_refused(["plot", run_dir], ["line 1"], capfd, tmp_path)
