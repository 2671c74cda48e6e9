"""The process: its streams, cores, threads, memory, garbage collector and logs.

Nothing else in this package changes what belongs to the whole process, but for the signal handlers
of a training and a server, and the seeds of a run. Each context manager restores what it changes.
TensorFlow is imported only inside functions, so that the command line can answer before it is
loaded.
"""

import contextlib
import gc
import io
import logging
import math
import multiprocessing
import os
import pathlib
import re
import select
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

# Lines that TensorFlow's C++ code writes about the processor and CUDA when it starts.
_START = re.compile(
    rb"[IWE]\d{4} .*|WARNING: All log messages before absl.*|To enable the following instr.*"
)
# Variables that TensorFlow and oneDNN read before their first operation.
_TRAINING_ENVIRONMENT = {
    # TensorFlow's allocator keeps freed memory. glibc returns memory to the kernel, which clears it
    # for the next operation. If glibc is told to keep it, a tenth of the time is its search for
    # free memory. The limit is a TiB instead of 64 GiB.
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(2**20),
    # Each shape of a batch has kernels of its own: the usual cache of 1,024 is full after 20.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32768",
}
_QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")  # CPU microseconds per period, and the period
_REDIRECTED = threading.Lock()  # held while a block of `quiet` has stderr
_tensorflow_pid: int | None = None  # see `require_no_fork`


class _Unbreakable(io.FileIO):
    """A standard error whose reader may go away: what nobody can read is dropped."""

    def write(self, content: bytes) -> int:
        with contextlib.suppress(OSError):
            return super().write(content)
        return len(content)


def prepare_command() -> None:
    """Prepare a process for a command: its streams, and what TensorFlow and Python will do."""
    open_streams()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # cuInit fails where there is no GPU
    # TensorFlow's graphs are many objects that stay. Searching them for garbage took a tenth of the
    # time until the first update of a training.
    gc.set_threshold(100_000, 20, 100)


def prepare_server() -> None:
    """Prepare a process that serves a model; call this before TensorFlow is loaded."""
    # oneDNN compiles its operations again for each shape, and every batch has other shapes.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    logging.basicConfig(format="tf-transformer: %(message)s")


def prepare_cpu(num_cores: int, num_parts: int) -> None:
    """Share the cores among the parts of a batch, and keep memory and kernels for the next batch.

    Call this function before TensorFlow's first operation. Later, it changes nothing but the
    environment of processes that this one starts.
    """
    import tensorflow as tf

    for name, value in _TRAINING_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(max(1, num_cores // num_parts))


def run_in_callers_thread() -> None:
    """Run each operation in the thread that calls it; parallel batches use the other cores.

    Small operations cost less in one thread than handed from thread to thread. The call does
    nothing once TensorFlow has run something in this process.
    """
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(-1)


def hide_other_gpus(gpus: Sequence[Any]) -> None:
    """Let TensorFlow see only these physical devices; call this before its first operation."""
    import tensorflow as tf

    tf.config.set_visible_devices(gpus, "GPU")


_options_before: list[bool] = []  # a stack, since threads may overlap


@contextlib.contextmanager
def plain_graphs() -> Iterator[None]:
    """Turn off TensorFlow's optimizer of graphs in this process, also for calls traced meanwhile.

    On a CPU it made no step of training faster, and took a third of the time of the first one. A
    thread whose first function is called meanwhile keeps it off.
    """
    import tensorflow as tf

    option = "disable_meta_optimizer"
    _options_before.append(tf.config.optimizer.get_experimental_options()[option])
    tf.config.optimizer.set_experimental_options({option: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({option: _options_before.pop()})


@contextlib.contextmanager
def only_errors_of_tensorflow() -> Iterator[None]:
    """Let TensorFlow's Python code log no warnings, such as of what it will remove one day."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def begin_helper() -> None:
    """Leave the GPUs to the process that started this one, and end when it ends."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow may never be needed, and loads slowly
    if "tensorflow" in sys.modules:  # by a script that is the main module
        hide_other_gpus([])
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def require_no_fork() -> None:
    """Raise an error in a forked process, where TensorFlow would wait for threads forever.

    The first call belongs to the process that may use TensorFlow.

    Raises:
        RuntimeError: The first call was in the process from which this one was forked.
    """
    global _tensorflow_pid
    _tensorflow_pid = _tensorflow_pid or os.getpid()
    if _tensorflow_pid != os.getpid():
        raise RuntimeError(
            "TensorFlow does not work after a fork. Start processes with "
            "multiprocessing.get_context('spawn'), or make the first Translator after the fork."
        )


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


def discard_stdout() -> None:
    """Drop what is written to standard output from now on; Python flushes it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
