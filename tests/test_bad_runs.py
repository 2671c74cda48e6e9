"""Incomplete, damaged or changed runs: each gets one line that names the problem."""

import shutil

import pytest
from commands import assert_refused

from tf_transformer import cli


@pytest.mark.parametrize(
    "arguments", [["train", "--resume", "--run-dir={}"], ["export", "{}", "{}/saved"]]
)
@pytest.mark.parametrize("folder", ["missing", "folder"])
def test_a_folder_without_a_run_is_named(bad_files, capfd, arguments, folder):
    filled = [argument.format(bad_files / folder) for argument in arguments]
    assert_refused(filled, [f"{folder}: holds no run", "tf-transformer train"], capfd, bad_files)


def test_a_run_without_a_checkpoint_is_named(trained_run, tmp_path, capfd):
    run_dir = tmp_path / "run"
    shutil.copytree(trained_run[0], run_dir)
    shutil.rmtree(run_dir / "checkpoints")
    words = ["no checkpoint yet", "--resume"]
    assert_refused(["export", run_dir, tmp_path / "saved"], words, capfd, tmp_path)


def test_a_damaged_tokenizer_is_named(trained_run, tmp_path, capfd):
    run_dir = tmp_path / "run"
    shutil.copytree(trained_run[0], run_dir)
    (run_dir / "tokenizers" / "source.model").write_bytes(b"junk")
    for arguments in (
        ["export", run_dir, tmp_path / "saved"],
        ["train", f"--run-dir={run_dir}", "--resume", "--steps=99"],
    ):
        words = ["tokenizers/source.model: no SentencePiece model", "Restore"]
        assert_refused(arguments, words, capfd, tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("d_model = 32", "d_model = 64", "d_model was 32 and is 64"),
        ("d_ff = 64", "d_ff = 128", "d_ff was 64 and is 128"),
        ("norm_first = true", "norm_first = false", "norm_first was True and is False"),
    ],
)
def test_a_configuration_unlike_the_checkpoints_is_named(
    trained_run, tmp_path, capfd, before, after, difference
):
    run_dir = tmp_path / "run"
    shutil.copytree(trained_run[0], run_dir)
    config = (run_dir / "config.toml").read_text(encoding="utf-8")
    assert f"\n{before}\n" in config
    changed = config.replace(f"\n{before}\n", f"\n{after}\n")
    (run_dir / "config.toml").write_text(changed, encoding="utf-8")
    words = [r"checkpoints/step-\d+: ", difference, "Restore the earlier values"]
    for arguments in (
        ["export", run_dir, tmp_path / "saved"],
        ["train", f"--run-dir={run_dir}", "--resume", "--minutes=1"],
    ):
        assert_refused(arguments, words, capfd, tmp_path)


def test_damaged_weights_are_named(trained_run, tmp_path, capfd):
    run_dir = tmp_path / "run"
    shutil.copytree(trained_run[0], run_dir)
    for path in run_dir.glob("checkpoints/*/*.h5"):
        path.write_bytes(bytes(path.stat().st_size))
    for arguments in (
        ["export", run_dir, tmp_path / "saved"],
        ["train", f"--run-dir={run_dir}", "--resume", "--minutes=1"],
    ):
        assert cli.main(list(map(str, arguments))) == 2
        *warnings, error = capfd.readouterr().err.splitlines()
        assert warnings and all("is damaged, and skipped" in line for line in warnings)
        assert "can be read. Restore" in error and str(run_dir) in error
