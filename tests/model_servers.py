"""Servers on 127.0.0.1 for tests of the client: a scripted one by REST, and one by gRPC.

Both answer with a function `(signature, inputs) -> outputs` of lists of str and nested lists.
"""

import concurrent.futures
import contextlib
import http.server
import json
import threading

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

SIGNATURES = {
    "serving_default": (("text",), ("translation",)),
    "translate_nbest": (("text",), ("translations", "scores", "lengths", "truncated")),
    "translate_document": (
        ("text",), ("translation", "sentences", "sentence_translations", "truncated"),
    ),
    "score": (("source", "target"), ("log_prob", "num_tokens", "truncated")),
    "align": (
        ("source", "target"),
        ("source_subwords", "target_subwords", "attention", "source_lengths", "target_lengths",
         "truncated"),
    ),
}  # fmt: skip


def padded(rows, value):
    width = max(map(len, rows))
    return [[*row, *[value] * (width - len(row))] for row in rows]


def upper_case_model(signature, inputs):
    """The signatures of an export, of a model that translates by upper case."""
    if signature == "serving_default":
        return {"translation": [text.upper() for text in inputs["text"]]}
    if signature == "translate_nbest":
        rows = [
            ([text.upper(), ""], [-0.5, -1e9], [len(text), 0])
            if len(text) % 2
            else ([text.upper(), text.title()], [-0.5, -1.5], [len(text), 1])
            for text in inputs["text"]
        ]
        translations, scores, lengths = map(list, zip(*rows, strict=True))
        truncated = [len(text) > 20 for text in inputs["text"]]
        return {
            "translations": translations, "scores": scores, "lengths": lengths,
            "truncated": truncated,
        }  # fmt: skip
    if signature == "translate_document":
        sentences = [text.split("|") if text else [] for text in inputs["text"]]
        translations = [[s.upper() for s in row] for row in sentences]
        return {
            "translation": [text.upper() for text in inputs["text"]],
            "sentences": padded(sentences, ""),
            "sentence_translations": padded(translations, ""),
            "truncated": [len(text) > 20 for text in inputs["text"]],
        }
    pairs = list(zip(inputs["source"], inputs["target"], strict=True))
    truncated = [len(source + target) > 20 for source, target in pairs]
    if signature == "score":
        return {
            "log_prob": [-float(len(target)) for _, target in pairs],
            "num_tokens": [len(target.split()) + 1 for _, target in pairs],
            "truncated": truncated,
        }
    if signature != "align":
        raise LookupError(signature)
    sources = [[*("▁" + word for word in source.split()), "</s>"] for source, _ in pairs]
    targets = [["▁" + word for word in target.split()] for _, target in pairs]
    width = max(map(len, sources))
    attention = [
        [[1 / len(source)] * len(source) + [0.0] * (width - len(source)) for _ in target]
        for source, target in zip(sources, targets, strict=True)
    ]
    return {
        "source_subwords": padded(sources, ""),
        "target_subwords": padded(targets, ""),
        "attention": padded(attention, [0.0] * width),
        "source_lengths": [len(source) for source in sources],
        "target_lengths": [len(target) for target in targets],
        "truncated": truncated,
    }


def signature_map():
    """The signatures as a message of TensorFlow Serving."""
    content = get_model_metadata_pb2.SignatureDefMap()
    for name, (inputs, outputs) in SIGNATURES.items():
        definition = content.signature_def[name]
        for tensors, names in ((definition.inputs, inputs), (definition.outputs, outputs)):
            for tensor in names:
                tensors[tensor].dtype = tf.string.as_datatype_enum
    return content


# REST


class Answer:
    """An answer of the scripted server: a status, the content, and headers.

    A subclass may do something else with the handler.
    """

    def __init__(self, status, content, **headers):
        self.status = status
        self.body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.headers = headers

    def send(self, handler):
        handler.send_response(self.status)
        handler.send_header("Content-Length", str(len(self.body)))
        for name, value in self.headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(self.body)


class Closed(Answer):
    """No answer: the connection is closed."""

    def __init__(self):
        super().__init__(0, b"")

    def send(self, handler):
        handler.close_connection = True


class Truncated(Answer):
    """The connection is closed in the middle of the body."""

    def send(self, handler):
        handler.send_response(self.status)
        handler.send_header("Content-Length", str(len(self.body) + 100))
        handler.end_headers()
        handler.wfile.write(self.body)
        handler.close_connection = True


class Late(Answer):
    """Nothing, until the test is over."""

    def send(self, handler):
        handler.server.over.wait(20)
        handler.close_connection = True


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_GET(self):
        self.answer(None)

    def answer(self, content):
        with self.server.lock:
            self.server.requests.append((self.path, content))
            script = self.server.script
            answer = script.pop(0) if script else self.server.respond(self.path, content)
        answer.send(self)

    def log_message(self, *arguments):
        pass


class RestServer(http.server.ThreadingHTTPServer):
    """A server that answers as its script says, and after that as TensorFlow Serving would.

    Attributes:
        requests: (path, content) of each, as they came.
        script: `Answer`s for the next requests.
        connections: How many there were.
    """

    request_queue_size = 100

    def __init__(self, predict):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.predict = predict
        self.requests, self.script, self.connections = [], [], 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/v1/models/demo"

    def process_request(self, request, client_address):
        self.connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request, client_address):
        pass  # a client that leaves is no news

    def respond(self, path, content):
        path = path.removeprefix("/v1/models/demo").removeprefix("/versions/3")
        if content is None and path == "":
            return Answer(200, {"model_version_status": [STATUS]})
        if content is None and path == "/metadata":
            definitions = {name: {} for name in SIGNATURES}
            return Answer(200, {"metadata": {"signature_def": {"signature_def": definitions}}})
        if path != ":predict":
            return Answer(404, {"error": f"Malformed request: {path}"})
        if "instances" in content:
            return Answer(200, {"predictions": [text.upper() for text in content["instances"]]})
        try:
            outputs = self.predict(content["signature_name"], content["inputs"])
        except LookupError as error:
            return Answer(400, {"error": f"Serving signature name: {error} not found"})
        values = outputs if len(outputs) > 1 else next(iter(outputs.values()))
        return Answer(200, {"outputs": values})


STATUS = {
    "version": "3",
    "state": "AVAILABLE",
    "status": {"error_code": "OK", "error_message": ""},
}


@contextlib.contextmanager
def rest_server(predict=upper_case_model):
    server = RestServer(predict)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


# gRPC


class GrpcServer(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """The same by gRPC; its script has status codes.

    Attributes:
        requests: The messages of predictions, as they came.
        script: (status code, details) for the next predictions.
        url: Of the model `demo`.
    """

    def __init__(self, predict):
        self.predict = predict
        self.requests, self.script, self.url = [], [], None
        self.over = threading.Event()

    def Predict(self, request, context):  # noqa: N802
        self.requests.append(request)
        if self.script:
            context.abort(*self.script.pop(0))
        inputs = {
            name: decoded(tf.make_ndarray(tensor).tolist())
            for name, tensor in request.inputs.items()
        }
        try:
            outputs = self.predict(request.model_spec.signature_name, inputs)
        except LookupError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"Serving signature key {error}")
        response = predict_pb2.PredictResponse()
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(as_array(value)))
        return response

    def GetModelMetadata(self, request, context):  # noqa: N802
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.metadata["signature_def"].Pack(signature_map())
        return response

    def GetModelStatus(self, request, context):  # noqa: N802
        if request.model_spec.name != "demo":
            context.abort(grpc.StatusCode.NOT_FOUND, "Could not find any versions of model")
        response = get_model_status_pb2.GetModelStatusResponse()
        response.model_version_status.add(version=3, state="AVAILABLE")
        return response


def decoded(values):
    if isinstance(values, list):
        return [decoded(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values


def as_array(value):
    # NumPy's own strings would drop NULs at the end of a text.
    found = np.array(value)
    return np.array(value, object) if found.dtype.kind in "UO" else found


@contextlib.contextmanager
def grpc_server(predict=upper_case_model):
    servicer = GrpcServer(predict)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(servicer, server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        servicer.url = f"grpc://127.0.0.1:{port}/demo"
        server.start()
        try:
            yield servicer
        finally:
            servicer.over.set()
            server.stop(0).wait()
