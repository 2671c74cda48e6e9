"""An engine: one way to train, run in a process of its own, so that thread pools, allocators and
compilers of one do not disturb another.

An engine is a script beside this file. It gets its job, a JSON object, as the only argument, and
prints its result, a JSON object, as the last line.
"""

import json
import pathlib
import resource
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent


def run(script, job, environment=None):
    """Runs `script` with `job` in a new process, and returns its result."""
    process = subprocess.run(
        [sys.executable, str(FOLDER / script), json.dumps(job)],
        capture_output=True,
        text=True,
        env=environment,
    )
    if process.returncode:
        sys.exit(f"{script} failed with {process.returncode}:\n{process.stderr[-4000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def job():
    """The job of this process."""
    return json.loads(sys.argv[1])


def finish(result):
    """Prints the result of this process.

    The parent must stay small (no TensorFlow, no PyTorch): a process starts with the peak of the
    one that started it.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**result, "peak_mib": round(peak)}))
