"""The examples in docstrings: each public name has one, and all of them run."""

import doctest
import re

import keras
import numpy as np
import pytest
import small_runs
import tensorflow as tf

import tf_transformer as tt
from tf_transformer import serving, visualization
from tf_transformer.models.model_configs import ModelConfig

PARTS = {"": tt, "serving.": serving, "visualization.": visualization}
NAMES = sorted(f"{part}{name}" for part, module in PARTS.items() for name in module.__all__)
# What needs the network or another process, and errors, which nobody makes.
EXEMPT = {
    "load_tfds", "serving.Client", "serving.LocalServer", "serving.BadRequestError",
    "serving.NotFoundError", "serving.OverloadedError", "serving.ServingError",
    "serving.ServingTimeoutError", "serving.UnexpectedAnswerError", "serving.UnreachableError",
}  # fmt: skip
SLOW = {"ExportTranslator", "export_run", "export_saved_model"}  # they write a SavedModel
SENTENCES = ["Guten Morgen!", "Good morning!", "Wo ist der Bahnhof?", "Where is the station?"]


@pytest.fixture(scope="module")
def tokenizer():
    """A small SentencePiece tokenizer, of both languages."""
    return tt.SentencePieceTokenizer.train(SENTENCES, vocab_size=320)


@pytest.fixture
def model(tokenizer):
    """A tiny Transformer that fits the tokenizer, with the weights it begins with."""
    keras.utils.set_random_seed(1)
    size = tokenizer.vocab_size
    config = tt.TransformerConfig(size, size, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    return tt.Transformer(config)


@pytest.fixture
def translator(model, tokenizer):
    """A translator of both."""
    return tt.Translator.from_model(model, tokenizer, tokenizer, tt.Search(max_length=8))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of two updates."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    small_runs.train(run_dir, *small_runs.SETTINGS, "--steps=2")
    return run_dir


@pytest.fixture
def folder(tmp_path):
    """An empty folder."""
    return tmp_path


FIXTURES = ("folder", "model", "run_dir", "tokenizer", "translator")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in NAMES
        if name not in EXEMPT
    ],
)
def test_the_example_of_a_public_name_runs(name, request):
    part, _, attribute = name.rpartition(".")
    found = getattr(PARTS[f"{part}." if part else ""], attribute)
    is_config = isinstance(found, type) and issubclass(found, ModelConfig)
    document = (ModelConfig if is_config else found).__doc__  # configurations share an example
    assert ">>> " in document
    needed = [name for name in FIXTURES if re.search(rf">>> .*\b{name}\b", document)]
    known = {"tt": tt, "np": np, "tf": tf, "keras": keras}
    known |= {name: request.getfixturevalue(name) for name in needed}
    test = doctest.DocTestParser().get_doctest(document, known, name, None, None)
    report = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    doctest.DocTestRunner(optionflags=options).run(test, out=report.append)
    assert not report, "".join(report)
