"""Processes that read, tokenize and change text: the same text, and what happens when they fail."""

import functools
import gzip
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.data import text_files
from tf_transformer.data.corpus import load_corpus
from tf_transformer.data.lines import DataError
from tf_transformer.data.marks import MarkedText, Marks
from tf_transformer.data.mixture import Mixture, TaggedText
from tf_transformer.data.processes import HelperError, OtherProcess, map_in_processes
from tf_transformer.data.text import SampledText
from tf_transformer.data.text_files import TextFiles
from tf_transformer.data.tokenized_text import TokenizedText
from tf_transformer.run_tables import DataConfig, TokenizerConfig
from tf_transformer.runs import data
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer, VocabularySizeError

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path):
    names = ("Anna", "Ben", "Clara", "David", "Eva", "Finn")
    lines = [f"{name} reads {{file}} number {n} of {n * n}." for n in range(20) for name in names]
    for side in ("source", "target"):
        (tmp_path / side).write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "source", tmp_path / "target"


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Patterns of five files a side, some packed, one of long lines, one with a blank line."""
    monkeypatch.setattr(text_files, "_BYTES_FOR_PROCESSES", 1)
    for shard in range(5):
        lines = [f"{side} {{file}} {n * n % 900}.{shard}" for n in range(300) for side in "ab"]
        lines = {3: ["long " * 40] * 7, 4: [" ", *lines, ""]}.get(shard, lines)
        content = "\n".join(lines).encode()
        for side in ("source", "target"):
            packed = gzip.compress(content) if shard % 2 else content
            (tmp_path / f"{side}.{shard}").write_bytes(packed)
    return [f"{tmp_path}/{side}.*" for side in ("source", "target")]


def test_several_processes_read_what_one_reads(shards, monkeypatch):
    found = []
    for cores in (1, 3):
        monkeypatch.setattr("tf_transformer.data.corpus.num_cores", lambda cores=cores: cores)
        corpus = load_corpus(DataConfig(train_source=shards[0], train_target=shards[1]))
        text = corpus.train
        found.append([
            list(text), len(text), text.num_blank, text.fingerprint, text.num_same_source,
            corpus.validation, corpus.sample, corpus.notes, corpus.summary,
        ])  # fmt: skip
    assert found[0] == found[1] and found[0][2] == 1


def test_several_processes_tokenize_what_one_tokenizes(shards, tmp_path):
    marks = Marks(4)
    files = TextFiles(*shards)
    text = TaggedText(MarkedText(Mixture((files, SampledText(files, 0.5))), marks), "<a>")
    symbols = ["<a>", *marks.symbols.all]
    sentences = [side for pair in text for side in pair]
    tokenizer = tt.SentencePieceTokenizer.train(sentences, 330, user_symbols=symbols)
    expected = TokenizedText.build(text, (tokenizer, tokenizer), 30)
    assert 7 < len(expected.dropped) < 14 and 3400 < len(expected) < 3800
    for processes in (1, 3):
        cache = tmp_path / f"{processes}"
        found = TokenizedText.build(text, (tokenizer, tokenizer), 30, cache, processes)
        for name in ("ids", "offsets", "dropped"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert len(list(cache.glob("*/*"))) == 3
    too_long = TextFiles(*(f"{pattern[:-1]}3" for pattern in shards))
    with pytest.raises(DataError, match="all 7 sentence pairs have more tokens"):
        TokenizedText.build(too_long, (tokenizer, tokenizer), 30, tmp_path / "long", 3)


def test_the_tokenizer_is_trained_on_a_sample_of_a_large_text(shards, monkeypatch):
    counts = []

    def train(sentences, *others):
        counts.append(len(list(sentences)))
        raise VocabularySizeError

    monkeypatch.setattr(SentencePieceTokenizer, "train", train)
    monkeypatch.setattr(data, "MAX_SENTENCES", 1000)
    sources = {"train_text": shards[0]}, {"train_source": shards[0], "train_target": shards[1]}
    for tables in sources:
        for cores in (1, 3):
            monkeypatch.setattr(data, "num_cores", lambda cores=cores: cores)
            config = DataConfig(**tables)
            with pytest.raises(VocabularySizeError):
                data._train_tokenizers(TokenizerConfig(300), config, load_corpus(config), False)
    assert counts[0] == counts[1] and counts[2] == counts[3]
    assert all(800 < count < 1200 for count in counts)


def test_an_error_of_one_process_ends_them_all(shards):
    pathlib.Path(shards[1].replace("*", "2")).write_bytes(b"a\n\xff\n")
    with pytest.raises(DataError, match=r"target\.2, line 2: not valid UTF-8"):
        TextFiles(*shards, processes=2)
    before = multiprocessing.active_children()
    with pytest.raises(DataError, match="first"):
        list(map_in_processes(_fail_or_sleep, [0, 600, 600], 2))
    assert multiprocessing.active_children() == before


def test_a_killed_process_is_an_error_and_no_full_disk(shards, tmp_path):
    text, tokenizer = TextFiles(*shards), _Killing()
    with pytest.raises(HelperError, match="was killed, perhaps for lack of memory"):
        TokenizedText.build(text, (tokenizer, tokenizer), 30, tmp_path / "cache", 2)
    assert not list((tmp_path / "cache").iterdir())


def test_no_process_outlives_the_one_that_started_it():
    path = ":".join([str(pathlib.Path(__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, __file__], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while pathlib.Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not pathlib.Path(f"/proc/{child}").exists()


@pytest.mark.parametrize("row_length", [None, 128])
def test_a_process_makes_the_noise_that_a_thread_makes(files, row_length):
    text, marks = TextFiles(*files), Marks(4)
    sentences = [side for pair in text for side in pair]
    tokenizer = tt.SentencePieceTokenizer.train(sentences, 330, user_symbols=marks.symbols.all)
    options = {"batch_tokens": 400, "seed": 1, "source_noise": 0.4, "mark_practice": 0.4}
    before = multiprocessing.active_children()
    ours, other = (
        tt.TokenBatches.from_text(
            text,
            tokenizer,
            tokenizer,
            **options,
            marks=marks,
            row_length=row_length,
            in_process=in_process,
        )
        for in_process in (False, True)
    )
    for expected, found in zip(
        *(each.dataset(num_epochs=2) for each in (ours, other)), strict=True
    ):
        tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    [process] = (child for child in multiprocessing.active_children() if child not in before)

    files[0].write_text("something else")
    with pytest.raises(tf.errors.OpError):
        list(other.dataset(first_epoch=5, num_epochs=1))
    assert isinstance(other.failure, DataError) and str(files[0]) in str(other.failure)
    process.kill()
    with pytest.raises(tf.errors.OpError):
        list(other.dataset(first_epoch=9, num_epochs=1))
    assert "was killed" in str(other.failure)


def test_an_error_of_the_disk_arrives_and_a_bug_says_so(capfd):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        OtherProcess(functools.partial(_fail, FileNotFoundError))(0)
    with pytest.raises(HelperError, match="as it says above"):
        OtherProcess(functools.partial(_fail, KeyError))(0)
    assert "KeyError: 'nowhere'" in capfd.readouterr().err
    unpicklable = OtherProcess(lambda epoch: epoch)
    for _ in range(2):  # and does not wait for a process that never began
        with pytest.raises((pickle.PicklingError, AttributeError)):
            unpicklable(0)


def _fail(error, epoch):
    raise error("nowhere")


def _fail_or_sleep(seconds):
    if not seconds:
        raise DataError("the first one")
    time.sleep(seconds)


def _say_pid_and_sleep(seconds):
    print(os.getpid(), flush=True)
    time.sleep(seconds)


class _Killing:
    """A tokenizer that kills its process."""

    vocab_size, model = 300, b""

    def encode(self, texts):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    OtherProcess(_say_pid_and_sleep)(600)
