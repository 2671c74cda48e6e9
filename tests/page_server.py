"""A small server with TensorFlow Serving's REST API and the page, whose model is easily predicted.

A word's translation is the word in capitals; the n-best list adds "!" and "!!". Words of more than
four letters have two subwords, and each subword attends to the one in its position.
"""

import html
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import tf_transformer

PAGE = Path(tf_transformer.__file__).parent / "serving" / "page.html"
POLICY = "default-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'"
MODEL = 'de & "en"'
SIGNATURES = ("serving_default", "translate_nbest", "translate_document", "score", "align")


def subwords(text):
    found = []
    for word in text.split():
        found += ["▁" + word[:4], word[4:]] if len(word) > 4 else ["▁" + word]
    return [*found, "</s>"]


def document(text):
    sentences = re.findall(r"\S[^.!?]*[.!?]*", text)
    sentences = [sentence.rstrip() for sentence in sentences]
    return {
        "translation": text.upper(),
        "sentences": [*sentences, ""],
        "sentence_translations": [*(sentence.upper() for sentence in sentences), ""],
        "truncated": "endless" in text,
    }


def n_best(text):
    return {
        "translations": [text.upper(), text.upper() + "!", text.upper() + "!!", ""],
        "scores": [-0.25, -0.5, -1.75, -1e9],
        "lengths": [1, 2, 3, 0],
        "truncated": False,
    }


def alignment(pair):
    source, target = subwords(pair["source"]), subwords(pair["target"])
    # A tenth of the attention goes to the end of the sentence.
    rows = [
        [0.9 if s == min(t, len(source) - 2) else 0.0 for s in range(len(source) - 1)] + [0.1]
        for t in range(len(target))
    ]
    return {
        "source_subwords": [*source, ""],
        "target_subwords": [*target, ""],
        "attention": [*([*row, 0.0] for row in rows), [0.0] * (len(source) + 1)],
        "source_lengths": len(source),
        "target_lengths": len(target),
        "truncated": False,
    }


ANSWERS = {
    "serving_default": str.upper,
    "translate_document": document,
    "translate_nbest": n_best,
    "align": alignment,
}


class PageServer(ThreadingHTTPServer):
    """Serves on a free port of this computer, between `with` and its end.

    Attributes:
        requests: The signature and instances of each prediction, in order.
        signatures: The signatures that the model has.
        version: Its version.
        failure: A status that every prediction has from now on, or None.
        delays: Seconds that a prediction takes, by signature.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.requests, self.signatures = [], SIGNATURES
        self.version, self.failure, self.delays = 7, None, {}

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def asked(self, signature):
        """The instances of each prediction of a signature."""
        return [instances for name, instances in self.requests if name == signature]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        model = "/v1/models/de%20%26%20%22en%22"
        if self.path == "/":
            page = PAGE.read_text(encoding="utf-8").replace("{{model}}", html.escape(MODEL))
            self.answer(200, page.encode(), "text/html; charset=utf-8")
        elif self.path == model:
            version = {"version": str(self.server.version), "state": "AVAILABLE"}
            self.answer_json(200, {"model_version_status": [version]})
        elif self.path == model + "/metadata":
            signatures = {name: {} for name in self.server.signatures}
            self.answer_json(200, {"metadata": {"signature_def": {"signature_def": signatures}}})
        else:
            self.answer_json(404, {"error": f"no {self.path}"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, instances = body["signature_name"], body["instances"]
        self.server.requests.append((name, instances))
        failure = self.server.failure
        time.sleep(self.server.delays.get(name, 0))
        if failure is not None:
            self.answer_json(failure, {"error": "what the <server> says"})
        else:
            self.answer_json(200, {"predictions": [ANSWERS[name](one) for one in instances]})

    def answer_json(self, status, value):
        self.answer(status, json.dumps(value).encode(), "application/json")

    def answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
