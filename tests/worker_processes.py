"""Starts processes that train together, and waits for their end."""

import json
import os
import socket
import subprocess
import sys

LONG = 300  # seconds; each process traces its own graphs


def free_ports(number=2):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def tf_config(ports, index):
    workers = [f"127.0.0.1:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def start_pair(*commands):
    ports = free_ports()
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CONFIG": tf_config(ports, index)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index, command in enumerate(commands)
    ]  # fmt: skip


def end(process, code):
    try:
        printed, errors = process.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:  # a worker that goes on alone waits forever
        process.kill()
        printed, errors = process.communicate()
    assert process.returncode == code, printed + errors[-3000:]
    return printed, errors
