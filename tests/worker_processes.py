"""Starts processes that train, alone or together, waits for them, and reads what they wrote."""

import json
import os
import socket
import subprocess
import sys
import time

from tf_transformer.runs.checkpoints import Checkpoints

LONG = 300  # seconds; each process traces its own graphs
TRAIN = ["-m", "tf_transformer.cli", "train"]


def copy_task_options(folder, *others):
    """Options of a training on the files of `write_copy_task`, of a second or two."""
    return [
        "--corpus=tsv", f"--train-tsv={folder / 'train'}",
        f"--validation-tsv={folder / 'validation'}", "--num-layers=1", "--d-model=16",
        "--num-heads=2", "--d-ff=32", "--vocab-size=272", "--batch-tokens=60", "--max-length=30",
        *others,
    ]  # fmt: skip


def free_ports(number=2):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def tf_config(ports, index):
    workers = [f"127.0.0.1:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def start(*command, **variables):
    return subprocess.Popen(
        [sys.executable, *command], env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def start_pair(*commands):
    ports = free_ports()
    return [start(*c, TF_CONFIG=tf_config(ports, index)) for index, c in enumerate(commands)]


def wait_for(happened, *processes):
    deadline = time.monotonic() + LONG
    while not happened():
        ended = [process for process in processes if process.poll() is not None]
        assert not ended, ended[0].stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def end(process, code):
    try:
        printed, errors = process.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:  # a worker that goes on alone waits forever
        process.kill()
        printed, errors = process.communicate()
    assert process.returncode == code, printed + errors[-3000:]
    return printed, errors


def newest_step(run_dir):
    """The step of the newest checkpoint, or 0."""
    latest = Checkpoints(run_dir / "checkpoints").latest()
    return latest.step if latest else 0
