"""The SavedModel as a server runs it: in a graph session, without this package."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from letters import MAX_LENGTH, random_model

import tf_transformer as tt

SCRIPT = pathlib.Path(__file__).with_name("graph_session.py")
KINDS = [("float32", 1), ("bfloat16", 3)]


def in_sessions(paths, texts):
    """The results of `graph_session.py` for each path."""
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT)],
        input=json.dumps({"paths": [str(path) for path in paths], "texts": texts}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def texts(sentences):
    # One of them is empty, and one is truncated.
    return [*sentences[:30], "", "a " * 200]


@pytest.fixture(scope="module")
def translators(randomise, letter_tokenizer):
    """A translator of random weights for each dtype and beam size."""
    return {
        (dtype, beam_size): tt.Translator.from_model(
            random_model(randomise, dtype=dtype),
            letter_tokenizer,
            letter_tokenizer,
            MAX_LENGTH,
            beam_size,
        )
        for dtype, beam_size in KINDS
    }


@pytest.fixture(scope="module")
def sessions(translators, texts, tmp_path_factory):
    """The results of a server for the SavedModel of each of them."""
    root = tmp_path_factory.mktemp("saved_models")
    paths = [
        tt.export_saved_model(translator, root / f"{dtype}-{beam_size}")
        for (dtype, beam_size), translator in translators.items()
    ]
    return dict(zip(translators, in_sessions(paths, texts), strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_restoring_sets_every_variable(sessions, kind):
    assert sessions[kind]["unset"] == []


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_session_translates_as_the_translator(sessions, translators, texts, kind):
    expected = translators[kind](texts)
    assert len(set(expected)) >= 15, "translations that differ, or equality says little"
    assert sessions[kind]["outputs"]["serving_default"] == {"translation": expected}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_session_gives_the_n_best_of_the_translator(sessions, translators, texts, kind):
    found = sessions[kind]["outputs"]["translate_nbest"]
    assert set(found) == {"translations", "scores", "lengths", "truncated"}
    n_best = 3 if kind[1] == 3 else 4
    expected = translators[kind].n_best(texts, n_best, beam_size=n_best)
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


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", ["score", "align"])
def test_a_session_scores_and_aligns_as_the_translator(sessions, translators, texts, kind, name):
    found = sessions[kind]["outputs"][name]
    expected = getattr(translators[kind].module, name)(*[tf.constant(texts)] * 2)
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
    [found] = in_sessions([saved / "1"], texts)
    assert found["unset"] == []
    expected = tt.Translator.load(saved)(texts)
    assert found["outputs"]["serving_default"]["translation"] == expected
