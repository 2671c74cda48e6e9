"""Incomplete, damaged or changed runs: each gets one line that names the problem."""

import dataclasses
import shutil

import pytest
from commands import assert_refused

import tf_transformer as tt

pytestmark = pytest.mark.usefixtures("use_small_copy_task")


@pytest.fixture
def run_dir(early_stopped_run, tmp_path):
    return shutil.copytree(early_stopped_run, tmp_path / "run")


def resume(run_dir):
    return ["train", f"--run-dir={run_dir}", "--resume", "--steps=99"]


@pytest.fixture
def assert_both_refused(run_dir, tmp_path, capfd):
    """Exporting the run and resuming it give one line with these words, and change nothing."""

    def check(*words):
        for arguments in (["export", run_dir, tmp_path / "saved"], resume(run_dir)):
            assert_refused(arguments, words, capfd, tmp_path)

    return check


def test_a_run_without_a_checkpoint_is_named(run_dir, tmp_path, capfd):
    shutil.rmtree(run_dir / "checkpoints")
    words = ["no checkpoint yet", "--resume"]
    assert_refused(["export", run_dir, tmp_path / "saved"], words, capfd, tmp_path)


def test_a_damaged_tokenizer_is_named(run_dir, assert_both_refused):
    (run_dir / "tokenizers" / "source.model").write_bytes(b"junk")
    assert_both_refused("tokenizers/source.model: no SentencePiece model", "Restore")


def replace_in_config(run_dir, old, new):
    path = run_dir / "config.toml"
    text = path.read_text("utf-8")
    assert f"\n{old}\n" in text
    path.write_text(text.replace(f"\n{old}\n", f"\n{new}\n"), encoding="utf-8")


def test_a_model_unlike_the_checkpoints_is_named(run_dir, assert_both_refused):
    replace_in_config(run_dir, "norm_first = true", "norm_first = false")
    words = "norm_first was True and is False", "Restore the earlier values"
    assert_both_refused("step-.*: ", *words)


def test_resume_names_all_differences_in_training(run_dir, tmp_path, capfd):
    replace_in_config(run_dir, "label_smoothing = 0.1", "label_smoothing = 0.2")
    replace_in_config(run_dir, "seed = 0", "seed = 1")
    words = [
        "label_smoothing was 0.1 and is 0.2",
        "seed was 0 and is 1",
    ]  # fmt: skip
    assert_refused(resume(run_dir), words, capfd, tmp_path)


def test_resume_refuses_a_corpus_that_has_changed(
    run_dir, tmp_path, capfd, monkeypatch, small_copy_task
):
    train = tt.copy_task(num_train=60, num_validation=4, num_test=0, max_length=6, seed=1).train
    other = dataclasses.replace(small_copy_task, train=train)
    monkeypatch.setattr("tf_transformer.runs.data.load_corpus", lambda *_: other)
    words = ["run: training corpus was 60 pairs, SHA-256 .* and is 60 pairs"]
    assert_refused(resume(run_dir), words, capfd, tmp_path)


def test_resume_refuses_another_tokenizer(run_dir, tmp_path, capfd, small_copy_task):
    sentences = small_copy_task.train.sources
    for side in ("source", "target"):
        tokenizer = tt.SentencePieceTokenizer.train(sentences[: len(sentences) // 2], 272)
        tokenizer.save(run_dir / "tokenizers" / f"{side}.model")
    words = ["source tokenizer was SHA-256", "target tokenizer was SHA-256"]
    assert_refused(resume(run_dir), words, capfd, tmp_path)
