"""A server of a model that is no network: it answers what is known, waits or fails on demand."""

import concurrent.futures
import contextlib
import http.client
import json
import socket
import threading
import time

import numpy as np

from tf_transformer.export import manifest
from tf_transformer.files import sha256
from tf_transformer.serving import Limits, LocalServer
from tf_transformer.serving.session import Signature, TensorSpec
from tf_transformer.serving.versions import Versions

TEXT = TensorSpec("string", (None,))
FLOAT = TensorSpec("float32", (None,))
MODEL = "/v1/models/demo"
PREDICT = f"{MODEL}:predict"


class StubModel:
    """Upper case for translations; a text "fail" fails, and "wait" waits for `go`.

    `batches` has the texts of each call.
    """

    signatures = {
        "serving_default": Signature({"text": TEXT}, {"translation": TEXT}),
        "other": Signature({"text": TEXT}, {"translation": TEXT}),
        "score": Signature({"source": TEXT, "target": TEXT}, {"ratio": FLOAT, "same": FLOAT}),
        "numbers": Signature({"x": FLOAT}, {"y": FLOAT}),
    }

    def __init__(self, prefix=""):
        self.prefix = prefix.encode()
        self.batches = []
        self.go = threading.Event()

    def warm_up_requests(self):
        return iter(())

    def run(self, signature, inputs):
        columns = [list(column) for column in inputs.values()]
        self.batches.append(columns[0])
        if b"wait" in columns[0]:
            assert self.go.wait(20)
        if b"fail" in columns[0]:
            raise ValueError("a text fails")
        if signature == "score":
            pairs = list(zip(inputs["source"], inputs["target"], strict=True))
            ratios = [len(s) / len(t) if t else np.inf for s, t in pairs]
            return {
                "ratio": np.array(ratios, np.float32),
                "same": np.array([s == t for s, t in pairs], bool),
            }
        rows = [self.prefix + text.upper() for text in columns[0]]
        return {"translation": np.array(rows, object)}


def eventually(condition, seconds=10):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never holds"
        time.sleep(0.005)


def make_server(tmp_path, load=None, threads=2, batching=True, **limits):
    """A `LocalServer` of a stub that is not started, and that stub."""
    model = StubModel()
    folder = tmp_path / "demo"
    make_version(folder, 1)
    server = LocalServer(folder, limits=Limits(**limits), threads=threads, batching=batching)
    server.versions = Versions(folder, True, poll_seconds=0.02, load=load or (lambda _: model))
    return server, model


@contextlib.contextmanager
def serving(tmp_path, **options):
    """A `LocalServer` of a stub, and that stub."""
    server, model = make_server(tmp_path, **options)
    try:
        with server:
            yield server, model
            model.go.set()
    finally:
        model.go.set()


def make_version(folder, number):
    """A folder that looks like a version as far as a stub needs it."""
    (folder / str(number)).mkdir(parents=True, exist_ok=True)
    (folder / str(number) / "saved_model.pb").write_text(str(number))


def write_manifest(version):
    """Writes the digests of a version's files, as an export does."""
    path = version / manifest.EXTRA / manifest.MANIFEST
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    files = [file for file in version.rglob("*") if file.is_file()]
    digests = {str(file.relative_to(version)): sha256(file) for file in files}
    path.write_text(json.dumps({"files": digests}))


def port_of(server):
    return int(server.address.rpartition(":")[2])


def ask(server, path=PREDICT, body=None, method=None, headers=None):
    """The status, headers and content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=30)
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    method = method or ("POST" if body is not None else "GET")
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
    is_json = response.headers.get("content-type") == "application/json"
    return response.status, response.headers, json.loads(content) if is_json else content


def in_background(function, *arguments):
    """The future of a call in a thread of its own."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments)
    pool.shutdown(wait=False)
    return future


def metric(server, name):
    """The value of a metric."""
    page = ask(server, "/metrics")[2].decode()
    (line,) = (line for line in page.splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


def waiting(server):
    """The number of requests in the queue."""
    return metric(server, "tf_transformer_queue_length")


def translate(server, *texts):
    """The status and translations, or the error, of texts in the row form."""
    status, _, content = ask(server, body={"instances": list(texts)})
    return status, content.get("predictions", content.get("error"))


def head_of(length):
    """The head of a predict request."""
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    return head.encode()


@contextlib.contextmanager
def connection_to(server):
    """A socket, for what a decent client does not send."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as client:
        yield client


def send(client, content):
    """Sends a predict request."""
    body = json.dumps(content).encode()
    client.sendall(head_of(len(body)) + body)


def response(client):
    """The status and content of an answer."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    return answer.status, answer.read()
