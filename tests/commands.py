"""Helpers of the tests of commands: running them, reading what they wrote, checking errors."""

import contextlib
import io
import json
import re
import resource
import subprocess
import sys

import pytest

from tf_transformer import cli
from tf_transformer.commands.options import read_options
from tf_transformer.errors import ConfigError

SMALL = [
    "--vocab-size=280", "--num-layers=1", "--d-model=32", "--num-heads=2", "--d-ff=64",
    "--batch-tokens=512", "--max-length=32", "--warmup-steps=50", "--no-repair-loops",
]  # fmt: skip
PERIOD, STEPS = 4, 6


def command(*arguments):
    return [sys.executable, "-m", "tf_transformer.cli", *map(str, arguments)]


def run(*arguments, **options):
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=300, **options
    )


def run_here(*arguments, status=0):
    """Runs a command in this process, to end with this status; returns what `run` returns."""
    # A command may write bytes to `sys.stdout.buffer`.
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        ended = cli.main([str(argument) for argument in arguments])
    printed = [stream.buffer.getvalue().decode() for stream in streams]
    assert ended == status, (arguments, printed)
    return subprocess.CompletedProcess(arguments, ended, *printed)


def run_python(*arguments, **options):
    """Runs Python in a process of its own; returns what it printed."""
    options = {"capture_output": True, "text": True, "timeout": 300, **options}
    done = subprocess.run([sys.executable, *map(str, arguments)], **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def last_json(printed):
    return json.loads(printed.splitlines()[-1])


def options_of(*arguments):
    """The options that a command would get."""
    values = vars(cli.make_parser().parse_args([str(argument) for argument in arguments]))
    return read_options(values.pop("command").Options, values)


def config_of(*options):
    """The configuration that `train` would get."""
    return options_of("train", "--run-dir=new", *options).run_config()


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def log_of(run_dir):
    return [json.loads(line) for line in lines_of(run_dir / "log.jsonl")]


def files(copy_files):
    """The four options that name text files."""
    return [
        f"--{part}-{side}={copy_files / part}.{side}"
        for part in ("train", "validation")
        for side in ("source", "target")
    ]


@contextlib.contextmanager
def small_files(limit):
    """Lets the system refuse to write more bytes into a file, as it would on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refusal(action, *arguments, kind=ConfigError, **options):
    """The message, of one line, of the error that an action must raise."""
    with pytest.raises(kind) as caught:
        action(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_one_line(printed, *words):
    assert "Traceback" not in printed
    (line,) = printed.splitlines()
    assert line.startswith("tf-transformer")
    assert len(line) < 400
    for word in words:
        assert re.search(word, line), f"{word!r} is not in {line!r}"


def assert_refused(arguments, words, capfd, tmp_path):
    """Exit status 2, one line on stderr with these words, and no new file."""
    before = sorted(tmp_path.rglob("*"))
    try:
        status = cli.main([str(argument) for argument in arguments])
    except SystemExit as end:  # argparse
        status = end.code
    printed = capfd.readouterr()
    assert_one_line(printed.err, *words)
    assert printed.out == ""
    assert status == 2
    assert sorted(tmp_path.rglob("*")) == before
