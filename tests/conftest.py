"""Fixtures of several test files; makes TensorFlow quiet first."""

import fcntl
import gc
import json
import os
import pathlib
import random
import shutil
import signal
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# GPUs would otherwise multiply 10 of the 23 bits of float32: no comparison below 1e-3 would pass.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
if "PYTEST_XDIST_WORKER" in os.environ:
    # The models of tests are small: one thread each for tests that run side by side.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import pytest

# Before their import, so that their failing asserts show values.
pytest.register_assert_rewrite("commands", "imports", "small_runs")

import commands
import hypothesis
import keras
import letters
import numpy as np
import phrase_models
import small_runs
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

import tf_transformer as tt
from tf_transformer.runs import callbacks, run, stopping

LOAD_CORPUS = "tf_transformer.runs.data.load_corpus"

# No property test shall fail because the machine is busy.
hypothesis.settings.register_profile(
    "unhurried",
    deadline=None,
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("unhurried")


def pytest_configure():
    """Prepares the process of the tests, and those that it starts."""
    # For the graphs of small models it takes half of the time. Sessions and processes keep it.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    # A shell ignores it in the background, nohup ignores the other, and processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class _Clock(keras.callbacks.Callback):
    """A clock on which a step takes 10 seconds and a validation 25."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def on_train_batch_end(self, batch, logs=None):
        self.now += 10

    def on_epoch_end(self, epoch, logs=None):
        self.now += 25


# Session scope, because hypothesis calls a test many times with one fixture.
@pytest.fixture(scope="session")
def randomise():
    """Gives every variable a random value: a zero bias would hide that it is never added."""

    def randomise(layer, seed=0):
        rng = np.random.default_rng(seed)
        for variable in layer.variables:
            if variable.path.endswith("seed_generator_state"):
                continue
            # With small gammas, the output of post-norm layers would hardly depend on the input.
            mean = 1.0 if variable.name == "gamma" else 0.0
            variable.assign(rng.normal(mean, 0.3, variable.shape))
        return layer

    return randomise


@pytest.fixture(scope="module", autouse=True)
def frozen_heap():
    """Keeps the collector off what earlier files left alive, which it would walk again and again.

    Keras collects whenever a layer gives up a variable; late in a run that took 80 % of some tests.
    What was frozen stays frozen: to walk it once for each file took a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def result_of():
    """Runs a script in a new process without GPUs; returns the JSON of its last line."""

    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return lambda script: commands.last_json(commands.run_python("-c", script, env=env))


@pytest.fixture(scope="session")
def write_copy_task(small_copy_task):
    """Writes the small copy task into a folder, as the TSV files train and validation."""

    def write(folder):
        for part in ("train", "validation"):
            text = getattr(small_copy_task, part)
            lines = [f"{s}\t{t}\n" for s, t in zip(text.sources, text.targets, strict=True)]
            (folder / part).write_text("".join(lines), encoding="utf-8")

    return write


# Commands


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Lets `make(folder)` fill a folder for all processes of the tests, which only read it.

    Returns the folder, and what `make` returned, a value for JSON.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name, make):
        folder, result = base / name, base / f"{name}.json"
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of another process, which failed
                result.write_text(json.dumps(make(folder)))
        return folder, json.loads(result.read_text())

    return made


@pytest.fixture(scope="session")
def copy_files(made_once):
    """A folder of text files of the copy task."""

    def make(folder):
        folder.mkdir()
        corpus = tt.copy_task(num_train=300, num_validation=12, num_test=12)
        for name in ("train", "validation", "test"):
            text = getattr(corpus, name)
            for side, sentences in (("source", text.sources), ("target", text.targets)):
                path = folder / f"{name}.{side}"
                path.write_text("".join(f"{s}\n" for s in sentences), encoding="utf-8")

    return made_once("data", make)[0]


@pytest.fixture(scope="session")
def trained_run(copy_files, made_once):
    """A run of a few steps, and what the command printed."""
    lengths = [f"--steps={commands.STEPS}", f"--validation-steps={commands.PERIOD}"]

    def make(folder):
        options = *commands.files(copy_files), *commands.SMALL, *lengths
        done = commands.run_here("train", "--run-dir", folder / "new" / "run", *options)
        return {"stdout": done.stdout, "stderr": done.stderr}

    folder, printed = made_once("runs", make)
    return folder / "new" / "run", types.SimpleNamespace(**printed)


@pytest.fixture(scope="session")
def exported_run(trained_run, made_once):
    """The SavedModel of that run, and what the command printed."""

    def make(folder):
        done = commands.run_here("export", trained_run[0], folder / "demo", "--beam-size=1")
        return {"stdout": done.stdout, "stderr": done.stderr}

    folder, printed = made_once("saved_models", make)
    return folder / "demo", types.SimpleNamespace(**printed)


@pytest.fixture(scope="session")
def small_copy_task():
    """The copy task, smaller than the command line has it."""
    return tt.copy_task(num_train=60, num_validation=4, num_test=0, max_length=6)


@pytest.fixture
def use_small_copy_task(small_copy_task, monkeypatch):
    """Lets every corpus of a run be the small copy task."""
    monkeypatch.setattr(LOAD_CORPUS, lambda *_: small_copy_task)


@pytest.fixture
def deterministic():
    """The option for deterministic ops; afterwards turns them off in this process."""
    yield "--deterministic"
    disable_op_determinism()


@pytest.fixture(scope="session")
def early_stopped_run(small_copy_task, made_once):
    """A run that learns nothing: ended by its steps, resumed, and ended by early stopping."""

    def make(run_dir):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LOAD_CORPUS, lambda *_: small_copy_task)
            small_runs.train(
                run_dir, *small_runs.SETTINGS, "--learning-rate=1e-9", "--validation-steps=2",
                "--schedule=noam", "--warmup-steps=1", "--patience=2", "--tensorboard", "--steps=4",
            )  # fmt: skip
            small_runs.train(run_dir, "--resume", "--steps=1000")

    return made_once("early_stopped_run", make)[0]


@pytest.fixture(scope="session")
def echo(copy_files, made_once):
    """The SavedModel of a model whose every translation is its source."""

    def make(folder):
        sentences = commands.lines_of(copy_files / "train.source")
        tokenizer = tt.SentencePieceTokenizer.train(sentences, 280)
        translator = tt.Translator.from_model(letters.EchoModel(280), tokenizer, tokenizer)
        tt.export_saved_model(translator, folder)

    return made_once("echo", make)[0]


@pytest.fixture
def bad_files(tmp_path):
    """A folder of unusable files, and of two that are usable but of different lengths."""
    (tmp_path / "two").write_text("a b\nc d\n", encoding="utf-8")
    (tmp_path / "three").write_text("a b\nc d\ne f\n", encoding="utf-8")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "blank").write_text("\n \n\n", encoding="utf-8")
    (tmp_path / "latin1").write_bytes(b"a b\nd\xfcnn\ne f\n")
    (tmp_path / "torn.gz").write_bytes(b"\x1f\x8b\x08\x00torn")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "one_tab").write_text("a\tb\nc d\n", encoding="utf-8")
    return tmp_path


# Callbacks


@pytest.fixture(scope="module")
def line_model():
    """A tiny Keras model; the callbacks take any, and the smallest is traced the fastest."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(tt.Adam(tt.NoamSchedule(16, warmup_steps=100)), "mse")
    return model


@pytest.fixture
def fit(line_model):
    """Trains with the given callbacks, 4 steps a period, until a callback stops it."""
    line_model.optimizer.iterations.assign(0)
    data = tf.data.Dataset.from_tensors((np.ones((2, 1)), np.ones((2, 1)))).repeat()

    def run(*under_test, epochs=1000):
        options = {"shuffle": False, "verbose": 0, "callbacks": list(under_test)}
        line_model.fit(data, steps_per_epoch=4, epochs=epochs, **options)
        return line_model

    return run


@pytest.fixture
def step_clock(monkeypatch):
    """The clock of limits and logs: a step takes 10 seconds and a validation 25."""
    clock = _Clock()
    for module in (callbacks, run, stopping):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=clock.monotonic))
    return clock


# Translators


@pytest.fixture(scope="session")
def sentences():
    """60 different sentences of 1 to 12 letters, in random order."""
    rng = random.Random(0)
    drawn = {" ".join(rng.choices("abcdefghij", k=rng.randint(1, 12))) for _ in range(80)}
    return rng.sample(sorted(drawn), 60)


@pytest.fixture(scope="session")
def letter_tokenizer(sentences):
    """A tokenizer of those sentences, in which a letter and the space before it are one subword."""
    return tt.SentencePieceTokenizer.train(sentences, letters.VOCAB_SIZE)


@pytest.fixture(scope="session")
def echo_translator(letter_tokenizer):
    """A translator whose translations are its sources."""
    return letters.translator_of(letters.EchoModel(letters.VOCAB_SIZE), letter_tokenizer)


@pytest.fixture(scope="session")
def first_sentence_model(letter_tokenizer):
    """A model that translates, into itself, the first sentence of a source and no more."""
    return letters.FirstSentenceModel(letter_tokenizer)


@pytest.fixture(scope="session")
def first_sentence_version(first_sentence_model, letter_tokenizer, made_once):
    """A SavedModel of it."""

    def make(folder):
        translator = letters.translator_of(first_sentence_model, letter_tokenizer)
        return tt.export_saved_model(translator, folder).name

    return pathlib.Path(*made_once("first", make))


@pytest.fixture(scope="session")
def in_memory(randomise, letter_tokenizer):
    """A translator with random weights, whose translations are the hardest to reproduce."""
    return letters.translator_of(letters.random_model(randomise), letter_tokenizer)


@pytest.fixture(scope="session")
def exported_version(in_memory, made_once, tmp_path_factory):
    """A SavedModel version of that translator, moved to another folder."""

    def make(moved):
        folder = tmp_path_factory.mktemp("saved_models") / "demo"
        shutil.move(tt.export_saved_model(in_memory, folder, version=3), moved)

    return made_once("moved", make)[0]


@pytest.fixture(scope="session")
def loaded(exported_version):
    """The translator loaded from there."""
    return tt.Translator.load(exported_version)


# Phrases


@pytest.fixture(scope="session")
def phrases():
    """The phrasebook in memory."""
    return tt.phrasebook(num_train=4000, num_validation=1, num_test=200)


@pytest.fixture(scope="session")
def phrase_tokenizer(phrases):
    """A joint tokenizer of the phrasebook."""
    sentences = [*phrases.train.sources, *phrases.train.targets]
    size = phrase_models.VOCAB_SIZE
    return tt.SentencePieceTokenizer.train(sentences, size, character_coverage=1.0)


@pytest.fixture(scope="session")
def phrase_model(phrases, phrase_tokenizer):
    """A model trained long enough to end most of its sentences."""
    keras.utils.set_random_seed(0)
    tokenizers = phrase_tokenizer, phrase_tokenizer
    sizes = {"batch_tokens": 1024, "max_length": phrase_models.MAX_LENGTH}
    batches = tt.TokenBatches.from_text(phrases.train, *tokenizers, **sizes, seed=0)
    model = phrase_models.model_of(tokenizers, norm_first=True, tied=True, num_layers=1)
    model.compile(
        optimizer=keras.optimizers.Adam(tt.NoamSchedule(48, 80, 0.6), 0.9, 0.98, 1e-9),
        loss=tt.SmoothedCrossEntropy(),
    )
    model.fit(batches.dataset(), steps_per_epoch=300, shuffle=False, verbose=0)
    return model
