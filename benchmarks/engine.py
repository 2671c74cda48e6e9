"""Run each engine of a comparison, such as one way to train, in its own process.

The thread pools, allocators and compilers of one engine then do not affect another. An engine is a
script beside this file. Its only argument is its job, a JSON object, and the last line that it
prints is its result, a JSON object. A script may run in another interpreter, which has a peer's
libraries and none of ours; this file needs the standard library only.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

FOLDER = pathlib.Path(__file__).parent


def run(
    script: str,
    job: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Run a script in a new process and return its result."""
    process = subprocess.run(
        [python, str(FOLDER / script), json.dumps(job)],
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


@contextlib.contextmanager
def script(python: str, name: str, job: Mapping[str, Any]) -> Iterator[Callable]:
    """Start a script that calls `answer`; yield a function that calls its function there."""
    worker = subprocess.Popen(
        [python, str(FOLDER / name), json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def call(*arguments):
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(arguments), file=worker.stdin, flush=True)
        if not (line := worker.stdout.readline()):
            sys.exit(f"{name} failed; its error is above.")
        return json.loads(line)

    try:
        yield call
    finally:
        worker.stdin.close()
        worker.wait()


def answer(make: Callable[[dict[str, Any]], Callable]) -> None:
    """Make a function from the job of this process; call it for each line of the input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print what they like, and only answers may go to the other process
    function = make(job())
    for line in sys.stdin:
        print(json.dumps(function(*json.loads(line))), file=answers, flush=True)


def timed(function: Callable[..., int]) -> Callable[..., tuple[int, float]]:
    """Return the function that returns also the seconds that it took."""

    def run(*arguments):
        started = time.perf_counter()
        result = function(*arguments)
        return result, time.perf_counter() - started

    return run


def _work(pipe: Any, make: Callable[..., Callable], arguments: tuple) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    function = make(*arguments)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(function(*pipe.recv()))


def add_peers(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Add an option for the interpreter of each peer."""
    for name in names:
        option = f"--{name.replace('_', '-')}-python"
        parser.add_argument(option, metavar="PYTHON", help=f"an interpreter that has {name}")


def peers(options: argparse.Namespace, names: Iterable[str]) -> dict[str, str]:
    """Return the interpreters of the peers that have one."""
    given = {name: getattr(options, f"{name}_python") for name in names}
    return {name: python for name, python in given.items() if python}


def job() -> dict[str, Any]:
    """Return the job of this process."""
    return json.loads(sys.argv[1])


def finish(result: Mapping[str, Any]) -> None:
    """Print the result of this process with its peak memory, unless the result has another.

    A process inherits the peak of its parent, so the parent must stay small (no TensorFlow, no
    PyTorch).
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mib": round(peak), **result}))
