"""Every command of docs/serving.md works as it stands there.

Those of its section on clients are in `test_client_server.py`.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "serving.md"
# What a test machine does not do: change its packages, run containers.
NOT_HERE = ("pip ", "docker ")


def commands_of(page):
    """The commands of the page, one after another."""
    page = re.sub(r"\n## Clients\n.*?\n## ", "\n## ", page, flags=re.DOTALL)
    for language, block in re.findall(r"```(sh|python)\n(.*?)```", page, re.DOTALL):
        if language == "python":
            yield f"python -c {shlex.quote(block)}"
            continue
        # A command goes on where its line ends with a backslash or is indented.
        for command in re.split(r"\n(?=\S)", block.strip()):
            if not command.startswith(NOT_HERE):
                yield command


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def wait_for(address, process):
    for _ in range(600):
        assert process.poll() is None, "the server has ended"
        try:
            return urllib.request.urlopen(f"{address}/healthz", timeout=5)
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(address)


@pytest.fixture
def folder(trained_run, exported_run, copy_files, tmp_path):
    """A folder with runs/demo and saved_models/demo, as after `make demo`."""
    shutil.copytree(exported_run[0], tmp_path / "saved_models" / "demo")
    run = shutil.copytree(trained_run[0], tmp_path / "runs" / "demo")
    (run / "test").mkdir(exist_ok=True)
    for side in ("source", "target"):
        shutil.copy(copy_files / f"test.{side}", run / "test" / f"{side}.txt")
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_command_works(folder):
    text = PAGE.read_text(encoding="utf-8")
    [example] = map(json.loads, re.findall(r"```json\n(.*?)```", text, re.DOTALL))
    port = free_port()
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = {"shell": True, "cwd": folder, "env": {**os.environ, "PATH": path}, "text": True}
    server, answers, commands = None, [], list(commands_of(text))
    try:
        for command in commands:
            if command.startswith("tf-transformer serve"):
                server = subprocess.Popen(f"exec {command} --port {port}", **options)
                wait_for(f"http://127.0.0.1:{port}", server)
                continue
            done = subprocess.run(
                command.replace(":8501", f":{port}"), capture_output=True, timeout=300, **options
            )
            assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
            if command.startswith("curl"):
                answers.append(json.loads(done.stdout))
    finally:
        if server:
            server.terminate()
            assert server.wait(60) == 0
    assert answers[0].keys() == example.keys()
    assert all("error" not in answer for answer in answers)
    assert len(answers) >= 5
    kinds = {command.split()[1] for command in commands if command.startswith("tf-transformer")}
    assert kinds == {"doctor", "serve", "export"}
