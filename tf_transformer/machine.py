"""The process: its standard streams, its cores, and silence while TensorFlow starts."""

import contextlib
import io
import math
import os
import pathlib
import re
import select
import sys
import tempfile
import threading
from collections.abc import Iterator

# Lines that TensorFlow's C++ code writes about the processor and CUDA when it starts.
_START = re.compile(
    rb"[IWE]\d{4} .*|WARNING: All log messages before absl.*|To enable the following instr.*"
)


_QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")  # CPU microseconds per period, and the period
_REDIRECTED = threading.Lock()  # held while a block of `quiet` has stderr


class _Unbreakable(io.FileIO):
    """A standard error whose reader may go away: what nobody can read is dropped."""

    def write(self, content: bytes) -> int:
        with contextlib.suppress(OSError):
            return super().write(content)
        return len(content)


def open_streams() -> None:
    """Open those standard streams that are closed, and let no broken standard error stop a command.

    Files that are opened later would otherwise get the numbers of closed streams.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdin, sys.stdout = sys.stdin or open(0), sys.stdout or open(1, "w")
    if sys.stderr is sys.__stderr__:
        stderr = _Unbreakable(2, "w", closefd=False)
        sys.stderr = io.TextIOWrapper(stderr, "utf-8", "backslashreplace", write_through=True)


def is_stdout_broken() -> bool:
    """Return whether the reader of standard output has gone away."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the messages about CPUs and CUDA that TensorFlow's C++ code writes when it starts.

    Other lines that the `with` block writes to stderr are shown at its end, and all lines if an
    exception is raised. A block inside of another one, or beside one in another thread, does
    nothing.
    """
    if not _REDIRECTED.acquire(blocking=False):
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.callback(_REDIRECTED.release)
        try:
            notes, screen = stack.enter_context(tempfile.TemporaryFile()), os.dup(2)
        except OSError:  # stderr is closed, or there is no temporary folder
            yield
            return
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(notes.fileno(), 2)
        is_done = False
        try:
            yield
            is_done = True
        finally:
            os.dup2(screen, 2)
            os.close(screen)
            notes.seek(0)
            shown = [line for line in notes if not (is_done and _START.match(line))]
            with contextlib.suppress(OSError):
                os.write(2, b"".join(shown))


def num_cores() -> int:
    """Return the number of cores this process may use, rounding a container's share up."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        quota, period = map(int, _QUOTA.read_text().split())
        cores = min(cores, max(1, math.ceil(quota / period)))
    return cores
