"""The checks of `tf-transformer doctor`.

A SavedModel is checked in a process that cannot import this package, because a server cannot
import it either. The process runs this file as a script. Therefore this file imports the package
only inside functions.
"""

import json
import os
import platform
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

_STAND_IN = [b"This is a text."] * 7  # a batch of a size that no warm-up record has
_MOST_LINES = 5  # of one check: the first problems are often the cause of the others


class Check(NamedTuple):
    """The result of a check, with a message of one line, which says what to do after a failure."""

    name: str
    status: Literal["ok", "FAIL", "note"]
    message: str


def diagnose(folder: Path | None = None) -> Iterator[Check]:
    """Yield the checks of the installation and, if `folder` is given, of a SavedModel."""
    yield Check("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    if folder is not None:
        from tf_transformer.export.manifest import manifest_path, verify_files

        try:
            problems = verify_files(folder)
        except OSError as error:
            problems = [f"{error.filename}: {error.strerror}. Make it readable."]
        yield from _failures("files", problems, f"all in {folder} are as exported")
        if problems and manifest_path(folder).is_file():
            yield Check("session", "note", "not run, since its files are not as exported")
            folder = None
    yield from _in_clean_process(folder)


def _in_clean_process(folder: Path | None) -> Iterator[Check]:
    # With -P, the folder of this file is no place of modules.
    done = subprocess.run(
        [sys.executable, "-P", __file__, *([str(folder)] if folder else [])],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    yield from (Check(*json.loads(line)) for line in done.stdout.splitlines())
    if done.returncode:
        # SIGKILL if memory is full; SIGILL if the processor lacks instructions of TensorFlow.
        how = subprocess.CalledProcessError(done.returncode, "TensorFlow's process")
        said = ["nothing", *done.stderr.strip().splitlines()][-1]
        yield Check("process", "FAIL", f"{how} It said last: {said[:300]}")


def _main() -> None:
    """Run the checks in this process, and print the results for the parent process."""
    sys.modules["tf_transformer"] = None  # makes importing it an error
    # Libraries may print too, and their output must not mix with the results.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for check in check_session(*sys.argv[1:]):
        print(json.dumps(check), file=results, flush=True)


def check_session(folder: str | None = None) -> Iterator[Check]:
    """Yield the checks of TensorFlow and, if `folder` is given, of a SavedModel in a session."""
    name, advice = "tensorflow", "Install it again."
    try:
        import tensorflow as tf

        session = runpy.run_path(str(Path(__file__).with_name("session.py")))
        gpus = len(tf.config.list_physical_devices("GPU"))
        yield Check(name, "ok", f"{tf.__version__} loads, with {gpus} GPUs")
        if folder is None:
            return
        name, advice = "session", "Export it again."
        started = time.monotonic()
        model = session["SavedModelSession"](folder)
        yield Check(name, "ok", f"loads in {time.monotonic() - started:.1f} s")
        name, advice = "warm-up", "A server does not load such a model: export it again."
        if not (model.folder / session["WARM_UP"]).is_file():
            yield Check(name, "note", "no records: the first requests to a server are slow")
        for signature, inputs in model.warm_up_requests():
            model.run(signature, inputs)
        yield Check(name, "ok", "all requests run")
    except Exception as error:  # each kind of damage has its own class of error
        yield Check(name, "FAIL", f"does not load or run: {_line(error)} {advice}")
        return
    problems = [f"{name}: {x}" for name in model.signatures for x in _problems(model, name)]
    yield from _failures("signatures", problems, f"{', '.join(sorted(model.signatures))} run")


def _problems(model: Any, name: str) -> Iterator[str]:
    """Yield the problems that a server would have with the outputs of a signature."""
    try:
        outputs = model.run(name, dict.fromkeys(model.signatures[name].inputs, _STAND_IN))
        for key, array in outputs.items():
            if array.dtype.kind == "f" and not (abs(array) < float("inf")).all():
                yield f"{key} holds numbers that are not finite, which JSON does not have."
    except Exception as error:
        yield f"it does not run: {_line(error)} Export it again."


def _line(error: BaseException) -> str:
    """Return an error's class and the most informative line of its message, with a full stop."""
    lines = [line.strip() for line in str(error).splitlines()]
    # A session puts a headline and the location in the graph before the message.
    headlines = ("Graph execution error", "Detected at node", "<stack traces", "File ")
    told = (line for line in lines if line and not line.startswith(headlines))
    return f"{type(error).__name__}: {next(told, '')[:300].rstrip('.')}."


def _failures(name: str, problems: Sequence[str], otherwise: str) -> Iterator[Check]:
    """Yield a failure for each of the first problems, or a success if there are no problems."""
    if not problems:
        yield Check(name, "ok", otherwise)
    yield from (Check(name, "FAIL", problem) for problem in problems[:_MOST_LINES])


if __name__ == "__main__":
    _main()
