"""What `tf-transformer doctor` checks: the installation, and an exported SavedModel."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from tf_transformer.export.manifest import EXTRA, MANIFEST, read_manifest, verify_files
from tf_transformer.serving.doctor import environment

_SCRIPT = pathlib.Path(__file__).with_name("clean_process.py")
_MOST_LINES = 5
# The longest that a process without the package may take, for a large model on a busy machine.
_SECONDS = 1800


class Check(NamedTuple):
    """The result of a check.

    Attributes:
        name: What was checked, a word.
        status: `"ok"`, `"FAIL"`, or `"note"` for what is worth knowing and no failure.
        message: One line; that of a failure says what to do.
        values: What was found, as plain values by name.
    """

    name: str
    status: Literal["ok", "FAIL", "note"]
    message: str
    values: dict[str, Any] = {}  # noqa: RUF012


def diagnose(folder: pathlib.Path | None = None) -> Iterator[Check]:
    """Yields the checks of the installation and, where one is given, of a SavedModel.

    Checks that need TensorFlow run in a process of their own. What fails is a `Check` and no
    exception.

    Args:
        folder: A SavedModel, such as `saved_models/NAME/1`.
    """
    yield from check_installation()
    files = [] if folder is None else list(check_files(folder))
    # What was changed since the export may do anything: it is not run.
    is_changed = folder is not None and (folder / EXTRA / MANIFEST).is_file()
    is_changed = is_changed and any(check.status == "FAIL" for check in files)
    in_clean_process = check_in_clean_process(None if is_changed else folder)
    yield next(in_clean_process)  # that of TensorFlow itself
    yield from files
    if is_changed:
        yield Check("session", "note", "not run, since its files are not as exported")
    yield from in_clean_process


def check_installation() -> Iterator[Check]:
    """Checks the installed packages, and says on what machine they are."""
    machine = environment.machine()
    yield Check("python", "ok", f"{machine['python']} on {machine['platform']}")
    cores, memory = machine["cores"], machine["memory_bytes"]
    about = [f"{cores} core{'' if cores == 1 else 's'}", f"{memory / 2**30:.1f} GiB of memory"]
    threads = [f"{name}={value}" for name, value in machine.items() if name.isupper()]
    yield Check("machine", "ok", ", ".join(about + threads), machine)
    found = {name: environment.installed_version(name) for name in environment.CORE}
    versions = {name: version for name, version in found.items() if version is not None}
    message = ", ".join(f"{name} {version}" for name, version in versions.items())
    clashes = environment.clashes(environment.installed_version)
    yield Check("packages", "note" if clashes else "ok", message, {"versions": versions})
    yield from failures("packages", clashes)


def check_files(folder: pathlib.Path) -> Iterator[Check]:
    """Checks the files of a SavedModel against its manifest."""
    try:
        problems = verify_files(folder)
    except OSError as error:
        problems = [f"{error.filename}: {error.strerror}. Make it readable."]
    yield from failures("files", problems)
    if not problems:
        manifest = read_manifest(folder)
        number = len(manifest["files"])
        yield Check(
            "files",
            "ok",
            f"{number} in {folder} are as exported",
            {"files": number, "created": manifest.get("created")},
        )


def check_in_clean_process(folder: pathlib.Path | None) -> Iterator[Check]:
    """Yields the checks of `clean_process.py`, at least one, run by a process of its own.

    Args:
        folder: A SavedModel; None checks TensorFlow only.
    """
    job = {
        # In isolated mode Python does not read the user's settings, and these name the packages.
        "sys_path": [path for path in sys.path if path],
        "folder": None if folder is None else os.path.realpath(folder),
    }
    with tempfile.TemporaryFile() as notes:
        process = subprocess.Popen(
            [sys.executable, "-I", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=notes,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
            text=True,
            encoding="utf-8",
        )
        timer = threading.Timer(_SECONDS, process.kill)
        timer.start()
        last = "none"
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(job))
            for line in process.stdout:
                check = check_of(json.loads(line))
                last = check.name
                yield check
            process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
        if process.returncode:
            notes.seek(0)
            reason = _reason(process.returncode, notes.read().decode("utf-8", "replace"))
            yield Check("process", "FAIL", f"TensorFlow's ended after the check {last}: {reason}")


def check_of(result: dict[str, Any]) -> Check:
    """The `Check` of a result of `clean_process.py`."""
    named = {name: result.pop(name) for name in ("name", "status", "message")}
    return Check(**named, values=result)


def failures(name: str, problems: list[str]) -> Iterator[Check]:
    """A failure for each problem, or for the first few and the number of others."""
    for problem in problems[:_MOST_LINES]:
        yield Check(name, "FAIL", problem)
    if len(problems) > _MOST_LINES:
        yield Check(name, "FAIL", f"and {len(problems) - _MOST_LINES} more")


def _reason(status: int, notes: str) -> str:
    """Why a process ended with this status, and what to do."""
    if status == -signal.SIGILL:
        return (
            "the processor lacks instructions that this TensorFlow was compiled for. Take another "
            "machine, or a TensorFlow compiled for this one."
        )
    if status == -signal.SIGKILL:
        return (
            f"it was killed, for want of memory or after {_SECONDS // 60} minutes. Take a machine "
            f"with more memory."
        )
    said = [line.strip() for line in notes.splitlines() if line.strip()]
    return f"status {status}. It said last: {said[-1][:300] if said else 'nothing'}"
