"""What all commands share: help, unknown options, interruptions, errors of one line."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from commands import assert_one_line, assert_refused, files, run

from tf_transformer import cli
from tf_transformer.config import SETTINGS, flag


@pytest.mark.parametrize("folder", ["missing", "folder", "two"])
def test_a_missing_saved_model_is_named(bad_files, capfd, folder):
    path = bad_files / folder
    words = [f"{folder}: no SavedModel there", "tf-transformer export"]
    source = f"--input={bad_files / 'two'}"
    output = f"--output={bad_files / 'out'}"
    assert_refused(["translate", path, source, output], words, capfd, bad_files)
    given = [f"--source={bad_files / 'two'}", f"--reference={bad_files / 'two'}"]
    assert_refused(["evaluate", path, *given], words, capfd, bad_files)


@pytest.mark.parametrize("option", ["--presett=tiny", "--step=3"])
def test_an_unknown_option_is_named_with_the_nearest(tmp_path, capfd, option):
    with pytest.raises(SystemExit) as caught:
        cli.main(["train", f"--run-dir={tmp_path / 'run'}", option])
    assert caught.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    nearest = option.split("=")[0].removesuffix("t").replace("--step", "--steps")
    assert line.startswith(f"tf-transformer train: unknown {option}; did you mean {nearest!r}?")


def test_ctrl_c_is_an_interruption_even_where_a_library_raises_another_error(monkeypatch, capfd):
    def library(options, started):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemError("from C++") from None

    monkeypatch.setattr(cli.train, "run", library)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    assert cli.main(["train", "--run-dir=x"]) == 130
    assert capfd.readouterr().err == "tf-transformer: interrupted.\n"


@pytest.mark.parametrize("size", ["0", "-1", "x"])
@pytest.mark.parametrize("name", ["translate", "evaluate"])
def test_a_batch_size_below_one_is_named(tmp_path, capfd, name, size):
    given = ["--source=x", "--reference=x"] if name == "evaluate" else []
    arguments = [name, "model", *given, f"--batch-size={size}"]
    assert_refused(arguments, ["--batch-size", f"'{size}'"], capfd, tmp_path)


@pytest.mark.parametrize("arguments", [[], ["trian"], ["train"], ["evaluate", "x"], ["export"]])
def test_an_unknown_command_gets_one_line(tmp_path, capfd, arguments):
    assert_refused(arguments, ["--help"], capfd, tmp_path)


def test_an_error_is_one_line_in_a_process_of_its_own(bad_files):
    given = files(bad_files, **{
        name: bad_files / "two"
        for name in ("train_source", "validation_source", "validation_target")
    }, train_target=bad_files / "three")  # fmt: skip
    done = run("train", f"--run-dir={bad_files / 'run'}", *given)
    assert done.returncode == 2
    assert_one_line(done.stderr, r"two has 2 ", r"three has 3\b")
    assert done.stdout == ""
    assert not (bad_files / "run").exists()


def test_the_installed_command_is_main(tmp_path):
    installed = shutil.which("tf-transformer", path=os.path.dirname(sys.executable))
    if installed is None:
        pytest.skip("the package is not installed in this environment")
    done = subprocess.run(
        [installed, "translate", "missing"], cwd=tmp_path, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert_one_line(done.stderr, "missing: no SavedModel there")


@pytest.mark.parametrize("name", [None, "train", "evaluate", "export", "translate", "serve"])
def test_every_command_has_help(capfd, name):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"] if name else ["--help"])
    assert end.value.code == 0
    printed = capfd.readouterr()
    assert printed.out.startswith("usage: tf-transformer")
    assert printed.err == ""
    if name is None:
        for other in ("train", "evaluate", "export", "translate", "serve"):
            assert re.search(rf"^ +{other} +\w", printed.out, re.MULTILINE)
    if name == "train":
        for name in itertools.chain.from_iterable(SETTINGS.values()):
            assert flag(name) in printed.out
        assert "--model-type {bpe,unigram}" in printed.out
