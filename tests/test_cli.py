"""What all commands share: help, options, interruptions, errors of one line."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from commands import assert_one_line, assert_refused, command, options_of

from tf_transformer import cli
from tf_transformer.config_fields import flag
from tf_transformer.errors import InputError
from tf_transformer.run_config import SETTINGS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--help"]),
        (["trian"], ["unknown command 'trian'; did you mean 'train'[?]", "--help"]),
        (["x"], [r"unknown command 'x'; known are doctor, .* translate\. See"]),
        (["evaluate", "x", "--source=y"], ["received 1 --source and 0 --reference"]),
        (["evaluate", "x", "--reference=y"], ["received 0 --source and 1 --reference"]),
        (["export"], ["RUN_DIR", "--help"]),
        (["evaluate", "x"], ["--source and --reference", "--help"]),
        (["train"], ["--run-dir", "--help"]),
        (["train", "--run-dir=x", "--presett=tiny"], ["unknown --presett=tiny.*'--preset'[?]"]),
        (["train", "--run-dir=x", "--step=3"], ["unknown --step=3; did you mean '--steps'[?]"]),
        (["train", "--run-dir=x", "--corpus=copy", "--weight=1"], ["--weight needs files"]),
        (["train", "--run-dir=x", "--corpus=copy", "--tag=<a>"], ["--tag needs files"]),
        (["train", "--run-dir=x", "--train-text=x", "--architecture=causal_lm", "--tag=<a>"],
         ["tag changes sources, but this corpus has none"]),
        (["translate", "x", "--batch-size=0"], ["--batch-size: .*greater than 0; received '0'"]),
        (["translate", "x", "--length-penalty=11"], ["--length-penalty: .*10; received '11'"]),
        (["translate", "x", "Two dogs"], ["unknown Two dogs; texts come from standard input"]),
        (["import", "onnx", "x", "--run-dir=y"], ["FORMAT: .*'bert'; received 'onnx'"]),
        (["translate", "nowhere"], ["nowhere: is no folder", "a run or a SavedModel"]),
        (["export", "x", "y", "--format=onnx"], ["--format: .*'ctranslate2'; received 'onnx'"]),
        (["serve", "x", "--port=70000"], ["--port", "'70000'"]),
        (["serve", "x", "--max-texts=0"], ["--max-texts", "'0'"]),
        (["serve", "x", "--max-text=1"], ["did you mean '--max-texts'"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_argument_is_named_in_one_line(tmp_path, capfd, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert_refused(arguments, words, capfd, tmp_path)


@pytest.mark.parametrize("error", [SystemError("from C++"), InputError("no"), OSError("no")])
def test_ctrl_c_is_an_interruption_even_where_a_library_raises_another_error(
    error, monkeypatch, capfd
):
    def library(options):
        try:
            signal.default_int_handler(signal.SIGINT, None)
        except KeyboardInterrupt:
            raise error from None

    monkeypatch.setattr(cli.COMMANDS["train"], "run", library)
    assert cli.main(["train", "--run-dir=x"]) == 130
    assert capfd.readouterr().err == "tf-transformer: interrupted.\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_output_is_one_line(tmp_path, unbuffered):
    (tmp_path / "text").write_text("a b\n")
    text = [f"--{side}={tmp_path / 'text'}" for side in ("source", "target")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("filter", *text, "--keep-copies"), stdout=full, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    message = "tf-transformer: standard output: No space left on device.\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_an_error_of_the_installed_command_is_one_line(bad_files):
    installed = shutil.which("tf-transformer", path=os.path.dirname(sys.executable))
    if installed is None:
        pytest.skip("the package is not installed in this environment")
    text = [
        f"--train-{side}={bad_files / name}"
        for side, name in (("source", "two"), ("target", "three"))
    ]
    done = subprocess.run(
        [installed, "train", f"--run-dir={bad_files / 'run'}", *text],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert_one_line(done.stderr, "two has 2 but .*three has 3")
    assert not (bad_files / "run").exists()


@pytest.mark.parametrize("name", [None, *cli.COMMANDS])
def test_every_command_has_help(capfd, name):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"] if name else ["--help"])
    assert end.value.code == 0
    printed = capfd.readouterr()
    usage, blank, *_, heading, example = printed.out.splitlines()
    assert usage.startswith("usage: tf-transformer") and blank == printed.err == ""
    if name is None:
        for other in cli.COMMANDS:
            assert re.search(rf"^ +{other}\s+[A-Z]", printed.out, re.MULTILINE)
    else:
        assert heading == "example:"
        _, _, arguments = example.strip().partition("tf-transformer ")
        assert options_of(*shlex.split(arguments)), "it is parsed"
        assert arguments.startswith(f"{name} ")
    if name == "doctor":
        assert options_of("doctor").saved_model is None, "it checks the installation alone"
    if name == "train":
        assert usage == "usage: tf-transformer train --run-dir DIR [options]"
        assert {flag(key) for fields in SETTINGS.values() for key in fields} <= {
            *re.findall(r"--[\w-]+", printed.out)
        }
        assert "--model-type {bpe,unigram}" in printed.out
        assert "--architecture S" in printed.out
