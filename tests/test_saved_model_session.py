"""The SavedModel as a server runs it: in a graph session, without this package."""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from graph_session import SCRIPT
from letters import MAX_LENGTH, random_model
from small_models import ALIGNING, GENERATING

import tf_transformer as tt
from tf_transformer.models.architectures import ARCHITECTURES

# Architecture, dtype and beam size.
KINDS = [("transformer", "float32", 1), ("transformer", "bfloat16", 3)]
OTHERS = [(name, "float32", 3) for name in GENERATING if name in ARCHITECTURES][1:]
EVERY_KIND = pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)], ids=str
)


def in_session(path, texts):
    """The results of `graph_session.py` for a SavedModel."""
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT)],
        input=json.dumps({"paths": [str(path)], "texts": texts}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [result] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def texts(sentences):
    # One of them is empty, and one is truncated.
    return [*sentences[:30], "", "a " * 200]


@pytest.fixture(scope="module")
def translators(randomise, letter_tokenizer):
    """Returns the translator of a kind, of random weights."""

    @functools.cache
    def translator_of(kind):
        architecture, dtype, beam_size = kind
        model = random_model(randomise, dtype=dtype, architecture=architecture)
        tokenizers = (letter_tokenizer, letter_tokenizer)
        search = tt.Search(max_length=MAX_LENGTH, beam_size=beam_size)
        return tt.Translator.from_model(model, *tokenizers, search)

    return translator_of


@pytest.fixture(scope="module")
def sessions(translators, texts, tmp_path_factory):
    """Returns the results of a server for the SavedModel of a kind."""

    @functools.cache
    def session_of(kind):
        folder = tmp_path_factory.mktemp("saved_models") / "model"
        return in_session(tt.export_saved_model(translators(kind), folder), texts)

    return session_of


@EVERY_KIND
def test_restoring_sets_every_variable(sessions, kind):
    assert sessions(kind)["unset"] == []


@EVERY_KIND
def test_a_session_translates_as_the_translator(sessions, translators, texts, kind):
    expected = translators(kind)(texts)
    assert len(set(expected)) >= 15, "translations that differ, or equality says little"
    assert sessions(kind)["outputs"]["serving_default"] == {"translation": expected}


@EVERY_KIND
def test_a_session_gives_the_n_best_of_the_translator(sessions, translators, texts, kind):
    found = sessions(kind)["outputs"]["translate_nbest"]
    assert set(found) == {"translations", "scores", "lengths", "truncated"}
    n_best = 3 if kind[2] == 3 else 4
    expected = translators(kind).n_best(texts, n_best, beam_size=n_best)
    for row, hypotheses in enumerate(expected):
        missing = n_best - len(hypotheses)
        assert found["translations"][row] == [h.text for h in hypotheses] + [""] * missing
        assert found["lengths"][row] == [h.length for h in hypotheses] + [0] * missing
        scores = found["scores"][row]
        assert scores[: len(hypotheses)] == pytest.approx([h.score for h in hypotheses], rel=1e-5)
        # A missing hypothesis has a score that JSON can hold and that sorts last.
        assert all(score < min(scores[: len(hypotheses)]) for score in scores[len(hypotheses) :])
    assert any(len(hypotheses) < n_best for hypotheses in expected), "some are missing"
    assert found["truncated"][-1] and not all(found["truncated"])


@EVERY_KIND
@pytest.mark.parametrize("name", ["score", "align"])
def test_a_session_scores_and_aligns_as_the_translator(sessions, translators, texts, kind, name):
    signature = getattr(translators(kind).module, name)
    if signature is None:
        assert name == "align" and kind[0] not in ALIGNING
        return
    found = sessions(kind)["outputs"][name]
    expected = signature(*[tf.constant(texts)] * 2)
    assert set(found) == set(expected)
    for key, values in expected.items():
        if values.dtype == tf.string:
            decoded = [[subword.decode() for subword in row] for row in values.numpy().tolist()]
            assert found[key] == decoded
        else:
            np.testing.assert_allclose(found[key], values.numpy(), rtol=1e-4, atol=1e-4)


def test_the_export_of_the_command_runs_in_a_session(exported_run, copy_files):
    saved, _ = exported_run
    texts = (copy_files / "test.source").read_text(encoding="utf-8").splitlines()
    found = in_session(saved / "1", texts)
    assert found["unset"] == []
    expected = tt.Translator.load(saved)(texts)
    assert found["outputs"]["serving_default"]["translation"] == expected
