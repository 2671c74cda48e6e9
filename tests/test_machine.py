"""The process: standard streams, silence while TensorFlow starts, and what else is process-wide."""

import ast
import contextlib
import logging
import os
import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from commands import run_python

import tf_transformer
from tf_transformer.machine import only_errors_of_tensorflow, plain_graphs

# Each is run by a shell: what it does to the streams, and what Python is to do.
START = f"exec {sys.executable} -c 'from tf_transformer import machine; machine.open_streams(); "


def shell(script, **options):
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, **options)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_files_do_not_get_the_numbers_of_closed_streams(tmp_path, closed):
    path = tmp_path / "file"
    body = f'import sys; file = open("{path}", "w"); print("out"); print("err", file=sys.stderr); '
    body += 'file.write(f"{file.fileno() > 2} {sys.stdin.read()}")'
    done = shell(f"{START}{body}' {closed}", input="in")
    assert done.returncode == 0, done.stderr
    assert path.read_text() == f"True {'' if '0' in closed else 'in'}"
    assert done.stdout == ("" if "1" in closed else "out\n")
    assert done.stderr == ("" if "2" in closed else "err\n")


@pytest.mark.parametrize("how", ["2>&-", "2>&1 | head -1"])
def test_nobody_who_stops_reading_errors_stops_a_command(tmp_path, how):
    code = "import sys; from tf_transformer import cli; cli.COMMANDS['doctor'].run = lambda o: "
    code += "[print(n, file=sys.stderr, flush=True) for n in range(99_999)] and 0; "
    code += "sys.exit(cli.main(['doctor']))"
    redirection, bar, reader = how.partition("|")
    line = f'{sys.executable} -c "{code}" {redirection}; echo $? >{tmp_path / "status"}'
    shell(f"({line}) {bar} {reader}")
    assert (tmp_path / "status").read_text() == "0\n"


def test_only_the_reader_of_the_output_may_end_a_command(tmp_path, copy_files):
    """A broken pipe elsewhere is an error."""
    script = "import sys; from tf_transformer import cli; cli.COMMANDS['doctor'].run = lambda o: "
    for body, status in (
        ("[print(n, flush=True) for n in range(99_999)]", "0"),
        ("(_ for _ in ()).throw(BrokenPipeError(32, 'Broken pipe'))", "2"),
    ):
        code = f"{script}{body}; sys.exit(cli.main(['doctor']))"
        line = f'({sys.executable} -c "{code}"; echo $? >{tmp_path / "status"}) | head -1'
        done = shell(line)
        assert (tmp_path / "status").read_text().strip() == status, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import tf_transformer as tt; tt.Translator.load({saved!r}); print(tt.Search())",
        pytest.param(
            "import tf_transformer as tt; tt.Transformer; print(tt.preset)", marks=pytest.mark.slow
        ),
    ],
)
def test_plain_python_is_silent(echo, code):
    done = subprocess.run(
        [sys.executable, "-c", code.format(saved=str(echo))], capture_output=True, text=True,
        env={k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout
    assert done.stderr == ""


def test_what_is_not_of_the_start_is_shown():
    code = """
import os, sys
from tf_transformer.machine import quiet
noise = "I0000 00:00:17 1 port.cc:153] oneDNN\\nWARNING: All log messages before absl::Init\\n"
with quiet():
    os.write(2, (noise + "a warning\\n").encode())
try:
    with quiet():
        os.write(2, noise.encode())
        raise ValueError
except ValueError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines() == [
        "a warning",
        "I0000 00:00:17 1 port.cc:153] oneDNN",
        "WARNING: All log messages before absl::Init",
    ]


def test_blocks_of_two_threads_leave_stderr_where_it_was():
    code = """
import os, threading
from tf_transformer.machine import quiet
before, inside, left = os.stat(2).st_ino, threading.Event(), threading.Event()
def first():
    with quiet():
        inside.set()
        left.wait()
thread = threading.Thread(target=first)
thread.start()
inside.wait()
with quiet():
    left.set()
    thread.join()
print(os.stat(2).st_ino == before)
"""
    assert run_python("-c", code) == "True\n"


@pytest.mark.parametrize("how", ["2>&-", "2>/dev/null TMPDIR=/nowhere"])
def test_plain_python_needs_no_stderr(how):
    redirect, _, variable = how.partition(" ")
    code = "import tf_transformer as t; print(t.preset)"
    done = shell(f"{variable} {sys.executable} -c '{code}' {redirect}")
    assert done.returncode == 0 and "preset" in done.stdout


def test_a_process_that_ignores_a_closed_terminal_goes_on_ignoring_it():
    """As nohup lets it."""
    code = """
import signal
from tf_transformer.training.signals import StopOnSignal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with StopOnSignal() as stop:
    signal.raise_signal(signal.SIGHUP)
    print(stop._received, signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
"""
    assert run_python("-c", code).split() == ["0", "True"]


PACKAGE = pathlib.Path(tf_transformer.__file__).parent
# Calls and assignments that change the whole process. Not among them are signal handlers, which
# stand where the process waits for the signal and are restored there, and the seeds and the
# determinism that a run asks for.
CHANGES = re.compile(
    r"os\.environ(\[.*\]|\.(setdefault|update|pop|clear|popitem))?|os\.(putenv|unsetenv|nice|dup2|umask)"
    r"|os\.(chdir|sched_setaffinity|setpriority|register_at_fork)|gc\.\w+|faulthandler\.\w+"
    r"|sys\.(path|modules)(\[.*\]|\.(insert|append|extend|remove|pop|setdefault|update))?"
    r"|resource\.setrlimit|sys\.(stdin|stdout|stderr|excepthook|set\w+)|warnings\.showwarning"
    r"|(.*\.)?(setLevel|basicConfig)|tf\.config\.(threading|optimizer)\.set_\w+"
    r"|tf\.config\.(run_functions_eagerly|set_\w+)|tf\.config\.experimental\.(set_\w+|enable_mlir\w+)"
    r"|keras\.(config|backend|mixed_precision|utils)\.(set_(?!random_seed)|enable_|disable_)\w+"
)


def process_wide_changes(source):
    """The lines of a source text that change the process, and what they change."""
    for node in ast.walk(ast.parse(source)):
        targets = []
        if isinstance(node, ast.Call):
            targets = [node.func]
        elif isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            each = target.elts if isinstance(target, ast.Tuple) else [target]
            for name in map(ast.unparse, each):
                if CHANGES.fullmatch(name):
                    yield node.lineno, name


def test_one_file_changes_the_process():
    found = {
        str(path.relative_to(PACKAGE)): changes
        for path in PACKAGE.rglob("*.py")
        if (changes := list(process_wide_changes(path.read_text(encoding="utf-8"))))
    }
    assert found.pop("machine.py")
    # This part of it runs as a script, in a process of its own that cannot import the package.
    assert [name for _, name in found.pop("serving/checks.py")] == [
        "sys.modules['tf_transformer']",
        "os.dup2",
    ]
    assert found == {}


def test_plain_graphs_restore_the_option_that_was_set():
    def get():
        return tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]

    before = get()
    try:
        for value in (True, False):
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": value})
            first, second = contextlib.ExitStack(), contextlib.ExitStack()
            first.enter_context(plain_graphs())
            second.enter_context(plain_graphs())
            first.close()  # as two threads may
            assert get()
            second.close()
            assert get() == value
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


def test_the_level_of_tensorflows_log_is_restored():
    logger, before = tf.get_logger(), tf.get_logger().level
    try:
        logger.setLevel(logging.INFO)
        with pytest.raises(KeyError), only_errors_of_tensorflow():
            assert logger.level == logging.ERROR
            raise KeyError
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
