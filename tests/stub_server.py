"""A server of a model that is no network: its answers are known, it waits or fails on demand."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import socket
import threading
import time
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from tf_transformer.export import manifest
from tf_transformer.serving import Limits, LocalServer, served_model

MODEL = "/v1/models/demo"
PREDICT = f"{MODEL}:predict"


def subwords(text):
    """A word of more than four letters has two."""
    found = []
    for word in text.split():
        found += ["▁" + word[:4], word[4:]] if len(word) > 4 else ["▁" + word]
    return found


def n_best(text):
    """Three hypotheses of four, or one for a letter; the others are missing."""
    count = 3 if len(text) > 1 else 1
    texts = [text.upper() + "!" * rank for rank in range(count)]
    missing = 4 - count
    return {
        "translations": [*texts, *[""] * missing],
        "scores": [*[-0.25, -0.5, -1.75][:count], *[-1e9] * missing],
        "lengths": [*map(len, texts), *[0] * missing],
        "truncated": len(text) > 200,
    }


def document(text):
    sentences = [sentence.rstrip() for sentence in re.findall(r"\S[^.!?]*[.!?]*", text)]
    translations = [sentence.upper() for sentence in sentences]
    return {
        "translation": text.upper(), "sentences": sentences,
        "sentence_translations": translations, "truncated": len(text) > 200,
    }  # fmt: skip


def alignment(source, target):
    """Each subword attends to the one in its position, and a tenth to the end."""
    sources, targets = [*subwords(source), "</s>"], subwords(target)
    rows = [
        [0.9 if s == min(t, len(sources) - 2) else 0.0 for s in range(len(sources) - 1)] + [0.1]
        for t in range(len(targets))
    ]
    return {
        "source_subwords": sources, "target_subwords": targets, "attention": rows,
        "source_lengths": len(sources), "target_lengths": len(targets),
        "truncated": len(source) > 200,
    }  # fmt: skip


def probability(source, target):
    return {
        "log_prob": -float(len(target)), "num_tokens": len(target.split()) + 1,
        "truncated": len(source + target) > 200,
    }  # fmt: skip


ROWS = {
    "serving_default": lambda text: {"translation": text.upper()},
    "other": lambda text: {"translation": text.upper()},
    "translate_nbest": n_best,
    "translate_document": document,
    "score": probability,
    "align": alignment,
}


def stacked(rows):
    """An array of rows, padded to one shape as in a graph; texts are bytes."""
    found = tf.ragged.constant(rows)
    return (found.to_tensor() if isinstance(found, tf.RaggedTensor) else found).numpy()


def signature_of(name):
    inputs = ("source", "target") if name in ("score", "align") else ("text",)
    text = meta_graph_pb2.TensorInfo(dtype=tf.string.as_datatype_enum)
    return meta_graph_pb2.SignatureDef(inputs=dict.fromkeys(inputs, text))


class StubModel:
    """Translates by upper case; a text "fail" fails, and "wait" waits for `go`.

    Attributes:
        batches: The texts of each call, of the first input.
        asked: The signature of each call, and its texts as str.
        delays: Seconds that a call takes, by signature.
    """

    def __init__(self):
        self.batches, self.asked, self.delays = [], [], {}
        self.go = threading.Event()
        self.signatures = {name: signature_of(name) for name in ROWS}

    @property
    def meta_graph(self):
        return meta_graph_pb2.MetaGraphDef(signature_def=self.signatures)

    def warm_up_requests(self):
        return iter(())

    def run(self, signature, inputs):
        columns = [[text.decode() for text in inputs[name]] for name in sorted(inputs)]
        self.batches.append(list(inputs[min(inputs)]))
        self.asked.append((signature, columns[0]))
        time.sleep(self.delays.get(signature, 0))
        if "wait" in columns[0]:
            assert self.go.wait(20)
        if "fail" in columns[0]:
            raise ValueError("a text fails")
        rows = [ROWS[signature](*texts) for texts in zip(*columns, strict=True)]
        outputs = {name: stacked([row[name] for row in rows]) for name in (rows or [{}])[0]}
        if signature == "align":  # also as wide as the longest source of an empty target
            missing = outputs["source_subwords"].shape[1] - outputs["attention"].shape[2]
            outputs["attention"] = np.pad(outputs["attention"], [(0, 0), (0, 0), (0, missing)])
        return outputs or {"translation": np.array([], object)}


def eventually(condition, seconds=10):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never holds"
        time.sleep(0.005)


class StubServer(LocalServer):
    """A server of `stub`, in place of what its folder holds."""

    def __enter__(self):
        with mock.patch.object(served_model, "SavedModelSession", lambda *_, **__: self.stub):
            return super().__enter__()


def make_server(tmp_path, name="demo", number=1, threads=2, **limits):
    """A `LocalServer` of a stub that is not started, and that stub."""
    folder = tmp_path / name
    make_version(folder, number)
    server = StubServer(folder, limits=Limits(**limits), threads=threads)
    server.stub = StubModel()
    return server, server.stub


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
    manifest.manifest_path(version).unlink(missing_ok=True)
    manifest.write_manifest(version, None, manifest.EXTRA)


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
    if content and response.headers.get("content-type") == "application/json":
        content = json.loads(content)
    return response.status, response.headers, content


def in_background(function, *arguments):
    """The future of a call in a thread of its own."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments)
    pool.shutdown(wait=False)
    return future


def waiting(server):
    """The number of requests in the queue."""
    return len(server._api.batcher)


def translate(server, *texts):
    """The status and translations, or the error, of texts in the row form."""
    status, _, content = ask(server, body={"instances": list(texts)})
    return status, content.get("predictions", content.get("error"))


def head_of(length):
    """The head of a predict request."""
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    return head.encode()


def connection_to(server):
    """A socket, for what a decent client does not send."""
    return socket.create_connection(("127.0.0.1", port_of(server)), timeout=20)


def response(client):
    """The status and content of an answer."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    return answer.status, answer.read()
