"""Noise that a process of its own makes: the same text, and what happens when that fails."""

import functools
import multiprocessing
import pickle

import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.data.lines import DataError
from tf_transformer.data.marks import Marks
from tf_transformer.data.prefetch import OtherProcess
from tf_transformer.data.text_files import TextFiles

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path):
    names = ("Anna", "Ben", "Clara", "David", "Eva", "Finn")
    lines = [f"{name} reads {{file}} number {n} of {n * n}." for n in range(20) for name in names]
    for side in ("source", "target"):
        (tmp_path / side).write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "source", tmp_path / "target"


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
    assert "The process that adds noise was killed" in str(other.failure)


def test_an_error_of_the_disk_arrives_and_a_bug_says_so(capfd):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        OtherProcess(functools.partial(_fail, FileNotFoundError))(0)
    with pytest.raises(ChildProcessError, match="as it says above"):
        OtherProcess(functools.partial(_fail, KeyError))(0)
    assert "KeyError: 'nowhere'" in capfd.readouterr().err
    unpicklable = OtherProcess(lambda epoch: epoch)
    for _ in range(2):  # and does not wait for a process that never began
        with pytest.raises((pickle.PicklingError, AttributeError)):
            unpicklable(0)


def _fail(error, epoch):
    raise error("nowhere")
