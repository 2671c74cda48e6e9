"""`tf-transformer serve` as a user starts and ends it, and under much and hostile load."""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from commands import assert_refused, command
from stub_server import MODEL, PREDICT, head_of, make_version

from tf_transformer import cli
from tf_transformer.export.manifest import EXTRA, MANIFEST
from tf_transformer.serving import Limits, batcher

DOCUMENTATION = (pathlib.Path(__file__).parents[1] / "docs" / "serving.md").read_text(
    encoding="utf-8"
)


@contextlib.contextmanager
def process(arguments, lines=3):
    """A command that serves, and the lines that it printed when it was ready."""
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started, [started.stdout.readline().rstrip("\n") for _ in range(lines)]
        finally:
            started.kill()


@pytest.fixture(scope="module")
def saved(echo, tmp_path_factory):
    """The SavedModel that echoes, as `demo`."""
    return shutil.copytree(echo, tmp_path_factory.mktemp("saved_models") / "demo")


def test_it_says_where_it_is_answers_curl_and_ends(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "demo")
    (folder / "1" / EXTRA / MANIFEST).unlink()
    with process(command("serve", folder, "--port=0")) as (started, lines):
        name, _, url = lines[0].rpartition(": ")
        assert name == "demo, version 1" and url.startswith("http://127.0.0.1:")
        assert lines[2] == "Ctrl-C ends it."
        assert lines[1].startswith("curl -d ") and lines[1].endswith(f"{url}v1/models/demo:predict")
        _, _, data, address = shlex.split(lines[1])  # curl -d DATA URL
        with urllib.request.urlopen(address, data.encode(), timeout=60) as response:
            assert len(json.loads(response.read())["predictions"]) == 1
        started.send_signal(signal.SIGTERM)
        out, err = started.communicate(timeout=60)
        assert (started.returncode, out, err) == (0, "", "")


def test_the_documentation_has_every_limit_and_its_default():
    rows = re.findall(r"^\|.*\| `--([a-z-]+)` \| ([0-9,]+)\b.*\|$", DOCUMENTATION, re.MULTILINE)
    found = {name.replace("-", "_"): int(value.replace(",", "")) for name, value in rows}
    assert found == dataclasses.asdict(Limits())
    words = f"up to {batcher.MAX_TEXTS} texts and {batcher.MAX_CHARACTERS:,} characters"
    assert words in " ".join(DOCUMENTATION.split())


STUB = """
import sys
sys.path.insert(0, {tests!r})
from tf_transformer import cli
from tf_transformer.machine import quiet
with quiet():
    from stub_server import StubModel
    from tf_transformer.serving import served_model

served_model.SavedModelSession = lambda folder: StubModel()
sys.exit(cli.main(["serve", {path!r}, "--port=0", "--request-seconds=5"]))
"""


@pytest.fixture
def stub(tmp_path, request):
    """A process that serves a stub, and its URL."""
    make_version(tmp_path / "demo", 1)
    script = STUB.format(tests=str(request.path.parent), path=str(tmp_path / "demo"))
    with process([sys.executable, "-c", script]) as (started, lines):
        yield started, lines[0].rpartition(": ")[2]


@pytest.mark.parametrize("signals", [pytest.param(1, marks=pytest.mark.slow), 2, "SIGTERM"])
def test_a_signal_ends_it_after_the_answers_and_a_second_ctrl_c_at_once(stub, signals):
    started, url = stub
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        body = b'{"instances": ["wait"]}'
        client.sendall(head_of(len(body)) + body)
        with urllib.request.urlopen(f"{url}healthz", timeout=60) as response:
            assert response.status == 200
        if signals == "SIGTERM":  # several change nothing
            for _ in range(3):
                started.send_signal(signal.SIGTERM)
                time.sleep(0.2)
        else:
            started.send_signal(signal.SIGINT)
        if signals != 2:  # after a second Ctrl-C the process ends without an answer
            assert client.recv(65536).startswith(b"HTTP/1.1 504 ")
        while signals == 2 and started.poll() is None:  # two that come together are one
            time.sleep(0.2)
            started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=20)
    ends = (130, "tf-transformer: interrupted.\n") if signals == 2 else (0, "")
    assert (started.returncode, err) == ends


def test_a_signal_while_the_model_loads_is_an_interruption(tmp_path, request):
    make_version(tmp_path / "demo", 1)
    script = STUB.format(tests=str(request.path.parent), path=str(tmp_path / "demo"))
    # Short sleeps, because another thread may get the signal, which does not wake this one.
    slow = "print('loads', flush=True) or [__import__('time').sleep(0.1) for _ in range(600)]"
    script = script.replace("StubModel()", slow)
    with process([sys.executable, "-c", script], lines=1) as (started, _):
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=20)
    assert (started.returncode, err) == (130, "tf-transformer: interrupted.\n")


def test_a_package_that_is_missing_is_named(saved, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "tf_transformer.serving.server", raising=False)
    words = ["needs the package uvicorn", "pip install starlette uvicorn"]
    assert_refused(["serve", saved], words, capfd, saved)


def test_whoever_waits_at_a_terminal_knows_for_what(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["serve", str(tmp_path), "--port=0"]) == 2
    first, second = capfd.readouterr().err.splitlines()
    assert first == f"tf-transformer: {tmp_path}: loading and warming up, which may take a minute."
    assert "no SavedModel" in second


def test_a_port_that_is_in_use_is_named(saved, capfd):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = [f"127.0.0.1 port {port} cannot be used", "--port"]
        assert_refused(["serve", saved, f"--port={port}"], words, capfd, saved)


# Load

TEXTS = ["", "eins zwei drei", "a\0b", "</s> <s> <unk>", "😀" * 50, "x" * 2000, "a\nb", "1 " * 500]
# Requests of all kinds: method, path, body and the status of the answer.
REQUESTS = [
    *(("POST", PREDICT, json.dumps({"instances": [text, "eins"]}), 200) for text in TEXTS),
    ("POST", f"{MODEL}/versions/1:predict", json.dumps({"inputs": TEXTS[:5]}), 200),
    ("POST", PREDICT, '{"signature_name": "translate_nbest", "instances": ["eins", ""]}', 200),
    *(("GET", path, None, 200) for path in (MODEL, f"{MODEL}/metadata", "/healthz")),
    *(("POST", PREDICT, body, 400) for body in (b"", b"[" * 50_000, b'{"instances": [1]}')),
    ("POST", PREDICT, b"x" * 2_000_000, 413),
    ("GET", "/v1/other", None, 404),
]


@pytest.fixture
def server(saved, tmp_path):
    """A server of a copy of it: its process, its port and the copy."""
    copy = shutil.copytree(saved, tmp_path / "demo")
    with process(command("serve", copy, "--port=0")) as (started, lines):
        yield started, int(re.search(r":(\d+)/$", lines[0])[1]), copy


def megabytes(started):
    """The memory that a process has."""
    text = pathlib.Path(f"/proc/{started.pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)[1]) / 1000


def ask_many(port, seed):
    """Sends 60 requests on one connection, and breaks others off."""
    rng = random.Random(seed)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        for method, path, body, status in rng.choices(REQUESTS, k=60):
            client.request(method, path, body)
            response = client.getresponse()
            content = json.loads(response.read())
            assert response.status == status, (status, path, content)
            assert ("error" in content) == (status != 200)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            request = head_of(23) + b'{"instances": ["eins"]}'
            client.sendall(request[: rng.randint(0, len(request))])


@pytest.mark.slow
def test_memory_stays_over_10000_requests(server):
    started, port, _ = server
    found = []
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for number in range(10):
            seeds = range(number * 100, number * 100 + 16)
            assert list(pool.map(ask_many, [port] * 16, seeds)) == [None] * 16
            found.append(megabytes(started))
    print("MB after each tenth:", [round(value) for value in found])
    # The first rounds fill TensorFlow's caches and the allocator's arenas.
    assert max(found[5:]) - min(found[3:5]) < 25
    started.send_signal(signal.SIGTERM)
    assert started.communicate(timeout=60) == ("", "") and started.returncode == 0
