"""Runs an engine (one way to train) in its own process.

The thread pools, allocators and compilers of one engine then do not disturb another. An engine is a
script beside this file. Its only argument is its job, a JSON object, and the last line that it
prints is its result, a JSON object.
"""

import json
import pathlib
import resource
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

FOLDER = pathlib.Path(__file__).parent


def run(
    script: str, job: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Runs a script in a new process and returns its result."""
    process = subprocess.run(
        [sys.executable, str(FOLDER / script), json.dumps(job)],
        capture_output=True,
        text=True,
        env=environment,
    )
    if process.returncode:
        sys.exit(f"{script} failed with {process.returncode}:\n{process.stderr[-4000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def job() -> dict[str, Any]:
    """Returns the job of this process."""
    return json.loads(sys.argv[1])


def finish(result: Mapping[str, Any]) -> None:
    """Prints the result of this process with its peak memory.

    A process inherits the peak of its parent, so the parent must stay small (no TensorFlow, no
    PyTorch).
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**result, "peak_mib": round(peak)}))
