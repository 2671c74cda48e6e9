"""The client's connections to a server, by TensorFlow Serving's REST API or its gRPC API."""

import json
import random
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from tf_transformer.inference.results import as_lists

_CONNECT_SECONDS = 5.0
_LONGEST_RETRY_AFTER = 30.0
_LARGEST_MESSAGE = 64 << 20  # bytes of an answer by gRPC
_MOST_ATTEMPTS = 5  # for a request by gRPC, which allows no more
_LONGEST_REASON = 400


class ServingError(Exception):
    """A request to a server failed. The message is one line, which names the server."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {' '.join(reason.split())[:_LONGEST_REASON]}")


class UnreachableError(ServingError, ConnectionError):
    """No server listens at the URL, or the connection breaks."""


class ServingTimeoutError(ServingError, TimeoutError):
    """No answer came in time."""


class OverloadedError(ServingError):
    """The server had no capacity for the request, even after all retries."""


class BadRequestError(ServingError, ValueError):
    """The server refused the request; its reason is in the message."""


class NotFoundError(ServingError, LookupError):
    """The server has no such model or version."""


class UnexpectedAnswerError(ServingError):
    """The server failed, or its answer is not one of TensorFlow Serving's."""


# Classes of errors by the status of REST or the code of gRPC.
_ERRORS: dict[int | str, type[ServingError]] = {
    **dict.fromkeys((400, 403, 413, "INVALID_ARGUMENT", "FAILED_PRECONDITION"), BadRequestError),
    **dict.fromkeys((404, "NOT_FOUND"), NotFoundError),
    **dict.fromkeys((429, 503, "RESOURCE_EXHAUSTED", "UNAVAILABLE"), OverloadedError),
    **dict.fromkeys((408, 504, "DEADLINE_EXCEEDED"), ServingTimeoutError),
}


class _Retry(urllib3.Retry):
    """urllib3's retries, except after a read timeout: the server is still working on the answer."""

    def increment(self, method=None, url=None, response=None, error=None, *others, **named):
        if isinstance(error, ReadTimeoutError):
            raise error
        return super().increment(method, url, response, error, *others, **named)

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        # Clients that came back at the same time would fill the queue again.
        seconds = super().get_retry_after(response)
        return seconds and min(seconds, _LONGEST_RETRY_AFTER) * random.uniform(1, 1.5)


class RestServer:
    """A model behind TensorFlow Serving's REST API."""

    def __init__(
        self, url: str, version: int | None, connections: int, timeout: float, retries: int
    ) -> None:
        match = re.fullmatch(r"(https?://[^/?#@]+)((?:/[^?#]*)?/v1/models/[^/:?#]+)/?", url)
        if not match:
            raise ValueError(
                "the URL must be that of a model, without a version or a password, such as "
                "http://127.0.0.1:8501/v1/models/demo or grpc://127.0.0.1:8500/demo."
            )
        server, path = match.groups()
        self._path = path if version is None else f"{path}/versions/{version}"
        self.where = server + self._path
        self._pool = urllib3.connection_from_url(
            server,
            maxsize=connections,
            block=True,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=timeout),
            # A prediction changes nothing on the server, so it can be sent twice.
            retries=_Retry(
                retries,
                redirect=False,
                allowed_methods=None,
                status_forcelist={429, 502, 503},
                raise_on_status=False,
                backoff_factor=0.1,
                backoff_jitter=0.1,
                backoff_max=10,
            ),
        )

    def predict(self, signature: str, inputs: Mapping[str, Sequence[str]]) -> dict[str, list]:
        # Use the column form, because the row form repeats the names of several outputs.
        content = {"signature_name": signature, "inputs": inputs}
        found = self._request("POST", f"{self._path}:predict", content).get("outputs")
        # A single output, which is the translation, comes without its name.
        return found if isinstance(found, dict) else {"translation": found}

    def status(self) -> dict[str, Any]:
        return self._request("GET", self._path)

    def metadata(self) -> dict[str, Any]:
        return self._request("GET", f"{self._path}/metadata")

    def close(self) -> None:
        self._pool.close()

    def _request(self, method: str, path: str, content: Any = None) -> dict[str, Any]:
        try:
            answer = self._pool.request(method, path, json=content, redirect=False)
        except ReadTimeoutError:
            raise ServingTimeoutError(self.where, "no answer in time") from None
        except HTTPError as error:
            reason = f"no connection ({getattr(error, 'reason', error)}); is the server running?"
            raise UnreachableError(self.where, reason) from None
        try:
            found = json.loads(answer.data)
        except ValueError:
            found = None
        if answer.status == 200 and isinstance(found, dict):
            return found
        message = found["error"] if isinstance(found, dict) and "error" in found else answer.data
        kind = _ERRORS.get(answer.status, UnexpectedAnswerError)
        raise kind(self.where, f"status {answer.status}: {message}")


class GrpcServer:
    """A model behind TensorFlow Serving's gRPC API, without encryption.

    The gRPC messages need TensorFlow, so methods of this class import it.
    """

    def __init__(self, url: str, version: int | None, timeout: float, retries: int) -> None:
        import grpc
        from tensorflow_serving.apis import model_pb2
        from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

        match = re.fullmatch(r"grpc://([^/?#@]+:\d+)/([^/?#]+)", url)
        if not match:
            raise ValueError("the URL must be that of a model, such as grpc://127.0.0.1:8500/demo.")
        self.where = url if version is None else f"{url} version {version}"
        self._timeout = timeout
        self._spec = model_pb2.ModelSpec(name=urllib.parse.unquote(match[2]))
        if version is not None:
            self._spec.version.value = version
        policy = {
            "maxAttempts": min(retries + 1, _MOST_ATTEMPTS),
            "initialBackoff": "0.1s",
            "maxBackoff": "10s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
        }
        method = {"name": [{}], **({"retryPolicy": policy} if retries else {})}
        options = {
            "grpc.service_config": json.dumps({"methodConfig": [method]}),
            "grpc.max_receive_message_length": _LARGEST_MESSAGE,
            "grpc.enable_http_proxy": 0,  # as with REST
        }
        self._channel = grpc.insecure_channel(match[1], list(options.items()))
        self._stub = PredictionServiceStub(self._channel)

    def predict(self, signature: str, inputs: Mapping[str, Sequence[str]]) -> dict[str, list]:
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest(model_spec=self._spec)
        request.model_spec.signature_name = signature
        for name, texts in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(texts, tf.string))
        try:
            found = self._stub.Predict(request, timeout=self._timeout).outputs
        except grpc.RpcError as error:
            code, message = error.code().name, error.details()
            kind = _ERRORS.get(code, UnexpectedAnswerError)
            # An overloaded server and an absent server have the same code.
            if code == "UNAVAILABLE" and "connect" in message:
                kind = UnreachableError
            raise kind(self.where, f"{code}: {message}") from None
        return {name: as_lists(tf.make_ndarray(tensor)) for name, tensor in found.items()}

    def status(self) -> dict[str, Any]:
        raise ServingError(self.where, "status and metadata need the http:// URL of the model.")

    metadata = status

    def close(self) -> None:
        self._channel.close()
