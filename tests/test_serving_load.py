"""A server under much and hostile load: only documented statuses, and memory that stays."""

import concurrent.futures
import contextlib
import http.client
import itertools
import json
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess

import pytest
from commands import command
from stub_server import MODEL, PREDICT, eventually, head_of, write_manifest

DOCUMENTED = {200, 400, 404, 405, 413, 429, 503, 504}
TEXTS = [
    "", " ", "eins zwei drei", "a\0b", "</s> <s> <unk> <pad>", "▁", "😀" * 50, "\u202eabc\u202c",
    "中文。", "x" * 2000, "a\nb\r\nc\u2028d", "e\u0301" * 20, "\ufffd\ufeff", "1 " * 500,
]  # fmt: skip


class Process:
    """A server in a process of its own."""

    def __init__(self, saved, *options):
        self.process = subprocess.Popen(
            command("serve", saved, "--port=0", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        first = self.process.stdout.readline()
        assert first, self.process.stderr.read()
        self.port = int(re.search(r":(\d+)/$", first.strip())[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, connection, method, path, body=None):
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()

    def get(self, path):
        with contextlib.closing(self.connect()) as connection:
            return self.ask(connection, "GET", path)[1].decode()

    def megabytes(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.M)[1]) / 1000

    def version(self):
        return json.loads(self.get("/healthz"))["version"]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            _, err = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, err


@pytest.fixture
def saved(echo, tmp_path):
    """The SavedModel that echoes, as `demo`, with digests."""
    shutil.copytree(echo, tmp_path / "demo")
    write_manifest(tmp_path / "demo" / "1")
    return tmp_path / "demo"


@pytest.fixture
def start(saved):
    """Starts a server of it."""
    started = []

    def start(*options):
        started.append(Process(saved, *options))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait(60)


def requests(rng):
    """One request of each kind: method, path, body, and whether the answer must be 200."""
    texts = [rng.choice(TEXTS) for _ in range(rng.randint(1, 4))]
    good = {"instances": texts}
    yield "POST", PREDICT, json.dumps(good), True
    yield "POST", f"{MODEL}/versions/1:predict", json.dumps(good, ensure_ascii=False).encode(), True
    yield "POST", PREDICT, json.dumps({"inputs": texts}), True
    yield "POST", PREDICT, json.dumps({"signature_name": "translate_nbest", **good}), True
    yield "GET", rng.choice([MODEL, f"{MODEL}/metadata", "/healthz"]), None, True
    bad = rng.choice(
        [b"", b"[", b"[" * 50_000, b'{"a":' * 50_000, b"\xff\xfe", b'{"instances": []}', b"{}",
         b'{"instances": [1]}', b'{"instances": ["a"], "signature_name": "x"}', b"x" * 2_000_000,
         json.dumps({"instances": ["a"] * 300}).encode(), b'{"instances": [' + b"9" * 5000 + b"]}"]
    )  # fmt: skip
    yield "POST", PREDICT, bad, False
    yield rng.choice(["GET", "PUT", "POST"]), f"/v1/{rng.random()}", None, False


def ask_many(server, seed, count):
    """Sends requests on one connection; the statuses."""
    rng = random.Random(seed)
    statuses = set()
    kinds = itertools.chain.from_iterable(requests(rng) for _ in itertools.count())
    with contextlib.closing(server.connect()) as connection:
        for method, path, body, is_good in itertools.islice(kinds, count):
            status, content = server.ask(connection, method, path, body)
            assert status in DOCUMENTED and (status == 200) == is_good, (status, path, content)
            assert path == "/metrics" or isinstance(json.loads(content), dict)
            statuses.add(status)
            if is_good and method == "POST":
                assert json.loads(content).keys() & {"predictions", "outputs"}
    return statuses


def break_off(server, seed, count):
    """Opens connections and leaves in the middle of a request or of its answer."""
    rng = random.Random(seed)
    body = json.dumps({"instances": ["eins zwei"]}).encode()
    whole = head_of(len(body)) + body
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(whole[: rng.randint(0, len(whole))])


@pytest.mark.slow
def test_memory_stays_over_20000_requests(start):
    server = start()
    threads, rounds, count = 16, 10, 125
    megabytes = []
    with concurrent.futures.ThreadPoolExecutor(threads + 2) as pool:
        for number in range(rounds):
            seeds = range(number * 100, number * 100 + threads)
            asked = [pool.submit(ask_many, server, seed, count) for seed in seeds]
            broken = [pool.submit(break_off, server, seed, 40) for seed in seeds[:2]]
            statuses = set().union(*(future.result(300) for future in asked))
            for future in broken:
                future.result(300)
            megabytes.append(server.megabytes())
            assert statuses == {200, 400, 404, 413}
    assert threads * rounds * count == 20_000
    print("MB after each tenth:", [round(value) for value in megabytes])
    # The first rounds fill TensorFlow's caches and the allocator's arenas.
    assert max(megabytes[5:]) - min(megabytes[3:5]) < 25
    assert server.end() == (0, "")


@pytest.mark.slow
def test_memory_stays_while_versions_come_and_go(saved, start):
    server = start()
    megabytes = []
    for number in range(2, 14):
        shutil.copytree(saved / "1", saved / ".new")
        (saved / ".new").rename(saved / str(number))
        eventually(lambda number=number: server.version() == number, seconds=60)
        with contextlib.closing(server.connect()) as connection:
            body = json.dumps({"instances": ["eins zwei"]})
            assert server.ask(connection, "POST", PREDICT, body)[0] == 200
        megabytes.append(server.megabytes())
    print("MB after each version:", [round(value) for value in megabytes])
    assert megabytes[-1] - megabytes[3] < 40
    returned, err = server.end()
    assert returned == 0
    assert err.splitlines() == [
        f"tf-transformer: version {number} serves in place of {number - 1}"
        for number in range(2, 14)
    ]
