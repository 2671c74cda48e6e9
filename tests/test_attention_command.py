"""`tf-transformer attention`: the alignment of a text and its translation as a picture."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf
from commands import assert_refused, run

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.visualization import attention, labels


@pytest.fixture
def drawn(monkeypatch):
    """What was drawn last: the arguments of `plot_alignment`."""
    calls = []
    plot = attention.plot_alignment

    def spy(*arguments):
        calls[:] = [arguments]
        return plot(*arguments)

    monkeypatch.setattr(attention, "plot_alignment", spy)
    return lambda: calls[0]


def command(model, text, output, *options):
    return cli.main(["attention", str(model), text, f"--output={output}", *options])


def test_attention_draws_the_alignment_of_a_text_and_its_translation(exported_run, tmp_path):
    output = tmp_path / "new" / "a.png"
    done = run("attention", exported_run[0], "a b c d", f"--output={output}", cwd=tmp_path)
    translate = tt.Translator.load(exported_run[0])
    translation = translate("a b c d")
    # The model is hardly trained, and may find no end.
    [aligned] = translate.align(["a b c d"], [translation])
    note = "a side has more tokens than the model takes; its end is left out."
    notes = f"tf-transformer attention: {note}\n" * aligned.truncated
    printed = f"{translation}\n{output}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, notes)
    assert output.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["a SavedModel", "a run"])
def test_what_is_drawn_is_what_align_returns(
    exported_run, trained_run, tmp_path, capfd, drawn, kind
):
    model = exported_run[0] if kind == "a SavedModel" else trained_run[0]
    output = tmp_path / "a.svg"
    assert command(model, " a b\nc ", output, "--target=b c d e") == 0
    assert capfd.readouterr() == (f"{output}\n", "")
    weights, source, target = drawn()
    assert source[-1] == "</s>"
    assert ("".join(source), "".join(target)) == ("▁a▁b▁c</s>", "▁b▁c▁d▁e")
    assert weights.shape == (len(target), len(source))
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    if kind == "a SavedModel":
        translator = tt.Translator.load(model)
        expected = translator.module.align(tf.constant(["a b c"]), tf.constant(["b c d e"]))[
            "attention"
        ][0]
        np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_what_is_left_out_or_cannot_be_drawn_is_said(
    exported_run, tmp_path, capfd, drawn, monkeypatch
):
    monkeypatch.setattr(labels, "_installed", list)
    labels._families.cache_clear()
    output = tmp_path / "a.png"
    monkeypatch.setattr(labels, "_has", lambda path, character: character != "▁")
    assert command(exported_run[0], "a " * 500, output, "--target=b") == 0
    labels._families.cache_clear()
    truncated, fonts = capfd.readouterr().err.splitlines()
    assert truncated.startswith("tf-transformer attention: a side has more tokens")
    assert fonts.startswith("tf-transformer attention: no installed font has ▁ (U+2581)")
    assert len(drawn()[1]) < 500


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a", ["--output=a.xyz"], [r"a\.xyz: must end in one of", r"\.png"]),
        ("a", ["--output=a"], ["a: must end in one of"]),
        (" \n", [], ["TEXT is empty"]),
        ("a", ["--target= "], ["--target is empty"]),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_a_model_is_loaded(
    tmp_path, capfd, monkeypatch, text, options, words
):
    monkeypatch.chdir(tmp_path)
    assert_refused(["attention", "nowhere", text, *options], words, capfd, tmp_path)


def test_a_model_without_alignment_and_a_missing_matplotlib_are_named(
    echo, tmp_path, capfd, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = [f"{echo}: this model has no alignment"]
    assert_refused(["attention", echo, "a b"], words, capfd, tmp_path)
    assert_refused(["attention", tmp_path, "a"], ["no SavedModel there"], capfd, tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert_refused(["attention", echo, "a b"], ["pip install matplotlib"], capfd, tmp_path)


def test_an_empty_translation_is_named(exported_run, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(tt.Translator, "__call__", lambda self, text: "")
    assert command(exported_run[0], "a b", tmp_path / "a.png") == 2
    assert "the translation is empty" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
