"""What the documents hold: their fenced blocks, and the commands in these; and running them."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

from commands import run_here

ROOT = pathlib.Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What a test machine does not do: change its packages, make environments, run containers.
NOT_HERE = ("pip ", "docker ", "python3 -m venv", ". .venv")


def blocks_of(text, *languages):
    """The fenced blocks in these languages."""
    return [block for language, block in FENCE.findall(text) if language in languages]


def commands_of(text):
    """The commands of the blocks `sh` and `python` of a page, one after another."""
    for language, block in FENCE.findall(text):
        if language == "python":
            yield f"python -c {shlex.quote(block)}"
        if language != "sh":
            continue
        # A command goes on where its line ends with a backslash or is indented.
        for command in re.split(r"\n(?=\S)", block.strip()):
            if not command.startswith(NOT_HERE):
                yield command


def run_commands(commands, folder):
    """Runs commands in a folder; `tf-transformer serve` on a free port, until all are done.

    Returns:
        What each `curl` answered, as objects of JSON.
    """
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PATH": path, "PYTHONPATH": search}
    options = {"shell": True, "cwd": folder, "env": env, "text": True}
    server, port, answers = None, "8501", []
    try:
        for command in commands:
            if command.startswith("tf-transformer serve"):
                pipe = {"stdout": subprocess.PIPE}
                server = subprocess.Popen(f"exec {command} --port 0", **pipe, **options)
                port = re.search(r":(\d+)/$", server.stdout.readline())[1]  # once it is ready
                continue
            if command.startswith("tf-transformer ") and not set("|<>&*$") & set(command):
                words = shlex.split(command.replace("\\\n", " "), comments=True)
                with contextlib.chdir(folder):  # without a shell, nor a new process
                    done = run_here(*words[1:])
            else:
                done = subprocess.run(
                    command.replace(":8501", f":{port}"),
                    capture_output=True,
                    timeout=600,
                    **options,
                )
            assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
            if command.startswith("curl"):
                answers.append(json.loads(done.stdout))
    finally:
        if server:
            server.terminate()
            assert server.wait(60) == 0
    return answers
