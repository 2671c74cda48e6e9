"""`tf-transformer attention`: the alignment of a text and its translation as a picture."""

import importlib.util
import itertools
import sys

import numpy as np
import pytest
from commands import assert_refused, run_here

import tf_transformer as tt
from tf_transformer.inference.results import AlignedPair
from tf_transformer.visualization import attention_weights


@pytest.fixture
def drawn(monkeypatch):
    """What was drawn last: the arguments of `plot_alignment`."""
    calls = []
    plot = attention_weights.plot_alignment

    def spy(*arguments):
        calls[:] = arguments
        return plot(*arguments)

    monkeypatch.setattr(attention_weights, "plot_alignment", spy)
    return calls


def draw(model, text, output, *options):
    return run_here("attention", model, text, f"--output={output}", *options)


@pytest.mark.slow
def test_attention_draws_what_align_returns(exported_run, trained_run, tmp_path, drawn):
    output = tmp_path / "new" / "a.png"
    translator = tt.Translator.load(exported_run[0])
    texts = map(" ".join, itertools.product("abcde", repeat=4))
    text = next(text for text in texts if translator(text))  # others become bytes alone
    done = draw(exported_run[0], text, output)
    assert done.stdout == f"{translator(text)}\n{output}\n"
    assert output.read_bytes().startswith(b"\x89PNG")
    [expected] = translator.align(["a b c"], ["b c d e"])
    for model in (exported_run[0], trained_run[0]):
        done = draw(model, " a b\nc ", output, "--target=b c d e")
        assert (done.stdout, done.stderr) == (f"{output}\n", "")
        weights, source, target = drawn
        assert ("".join(source), "".join(target)) == ("▁a▁b▁c</s>", "▁b▁c▁d▁e")
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
        if model == exported_run[0]:
            np.testing.assert_allclose(weights, expected.attention, atol=1e-6)


def test_truncated_text_and_characters_without_a_font_are_noted(
    exported_run, tmp_path, monkeypatch
):
    pair = AlignedPair(["▁\U00013000", "</s>"], ["▁b"], np.full((1, 2), 0.5), truncated=True)
    monkeypatch.setattr(tt.Translator, "align", lambda *texts: [pair])
    done = draw(exported_run[0], "a", tmp_path / "a.png", "--target=b")
    truncated, fonts = done.stderr.splitlines()
    assert "a side has more tokens" in truncated and "no installed font has some" in fonts


def test_what_has_no_alignment_is_named(echo, exported_run, tmp_path, capfd):
    words = [f"{echo}: this model has no alignment"]
    assert_refused(["attention", echo, "a b"], words, capfd, tmp_path)
    words = ["the translation is empty"]
    assert_refused(["attention", exported_run[0], "a b", "--target= "], words, capfd, tmp_path)


@pytest.mark.parametrize("arguments", [["attention", "nowhere", "a"], ["plot", "nowhere"]])
def test_a_missing_matplotlib_is_named(tmp_path, capfd, monkeypatch, arguments):
    for name in [name for name in sys.modules if name.startswith("tf_transformer.visualization")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert_refused(arguments, ["pip install matplotlib"], capfd, tmp_path)
