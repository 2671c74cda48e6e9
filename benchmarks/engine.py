"""Run each engine of a comparison, such as one way to train, in its own process.

The thread pools, allocators and compilers of one engine then do not affect another. An engine is a
script beside this file. Its only argument is its job, a JSON object, and the last line that it
prints is its result, a JSON object.
"""

import contextlib
import json
import multiprocessing
import pathlib
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

FOLDER = pathlib.Path(__file__).parent


def run(
    script: str, job: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a script in a new process and return its result."""
    process = subprocess.run(
        [sys.executable, str(FOLDER / script), json.dumps(job)],
        capture_output=True,
        text=True,
        env=environment,
    )
    if process.returncode:
        sys.exit(f"{script} failed with {process.returncode}:\n{process.stderr[-4000:]}")
    return json.loads(process.stdout.splitlines()[-1])


@contextlib.contextmanager
def process(make: Callable[..., Callable], *arguments: Any) -> Iterator[Callable]:
    """Start a process that makes a function; yield a function that calls it there."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_work, args=(theirs, make, arguments), daemon=True)
    worker.start()
    theirs.close()  # otherwise reading would not end when the process does

    def call(*job):
        ours.send(job)
        try:
            return ours.recv()
        except EOFError:
            sys.exit("a process of the benchmark failed; its error is above.")

    try:
        yield call
    finally:
        ours.close()
        worker.join()


def _work(pipe: Any, make: Callable[..., Callable], arguments: tuple) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    function = make(*arguments)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(function(*pipe.recv()))


def job() -> dict[str, Any]:
    """Return the job of this process."""
    return json.loads(sys.argv[1])


def finish(result: Mapping[str, Any]) -> None:
    """Print the result of this process with its peak memory.

    A process inherits the peak of its parent, so the parent must stay small (no TensorFlow, no
    PyTorch).
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**result, "peak_mib": round(peak)}))
