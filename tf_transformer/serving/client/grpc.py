"""The client's way to a server by gRPC; its messages are made of TensorFlow's, which it loads."""

import json
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tf_transformer.serving.client.errors import (
    BadRequestError,
    NotFoundError,
    OverloadedError,
    ServingError,
    ServingTimeoutError,
    UnexpectedAnswerError,
    UnreachableError,
)
from tf_transformer.serving.client.transport import RequestLimits, Transport

_LARGEST_ANSWER = 64 << 20  # bytes
_MOST_ATTEMPTS = 5  # gRPC's own limit
_KINDS: dict[grpc.StatusCode, type[ServingError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: ServingTimeoutError,
    grpc.StatusCode.FAILED_PRECONDITION: BadRequestError,
    grpc.StatusCode.INVALID_ARGUMENT: BadRequestError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAVAILABLE: OverloadedError,
}


class GrpcTransport(Transport):
    """One model by TensorFlow Serving's gRPC API, on one channel without encryption.

    Args:
        url: Such as `grpc://127.0.0.1:8500/demo`.
        version: The version; None is the highest that the server has.
        limits: How long and how often to try.

    Raises:
        ValueError: The URL is not that of a model.
    """

    def __init__(self, url: str, version: int | None, limits: RequestLimits) -> None:
        parts = urllib.parse.urlsplit(url)
        name = urllib.parse.unquote(parts.path.strip("/"))
        if not parts.hostname or not parts.port or not name or "/" in name:
            raise ValueError(
                f"the URL must be that of a model, such as grpc://127.0.0.1:8500/demo; "
                f"received {url!r}."
            )
        self.where = url if version is None else f"{url} version {version}"
        self._limits = limits
        self._spec = model_pb2.ModelSpec(name=name)
        if version is not None:
            self._spec.version.value = version
        self._channel = grpc.insecure_channel(parts.netloc, _channel_options(limits))
        prediction = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        model = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._predict = prediction.Predict
        self._metadata = prediction.GetModelMetadata
        self._status = model.GetModelStatus

    def predict(
        self, signature: str, inputs: Mapping[str, Sequence[str]], outputs: Sequence[str]
    ) -> dict[str, list]:
        """Runs a signature, see `Transport`."""
        request = predict_pb2.PredictRequest(
            model_spec=self._spec,
            inputs={name: _tensor(texts) for name, texts in inputs.items()},
        )
        request.model_spec.signature_name = signature
        found = self._call(self._predict, request).outputs
        return {name: _lists(tf.make_ndarray(tensor)) for name, tensor in found.items()}

    def status(self) -> dict[str, Any]:
        """The state of the versions, see `Transport`."""
        request = get_model_status_pb2.GetModelStatusRequest(model_spec=self._spec)
        return _content(self._call(self._status, request))

    def metadata(self) -> dict[str, Any]:
        """The signatures, see `Transport`."""
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._spec, metadata_field=["signature_def"]
        )
        return _content(self._call(self._metadata, request))

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _call(self, method: Callable, request: Any) -> Any:
        try:
            return method(request, timeout=self._limits.deadline)
        except grpc.RpcError as error:
            raise self._error(error) from None

    def _error(self, error: grpc.RpcError) -> ServingError:
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.UNAVAILABLE and not self._is_connected():
            return UnreachableError.of(self.where, f"nobody listens ({details})")
        kind = _KINDS.get(code, UnexpectedAnswerError)
        return kind.of(self.where, f"{code.name}: {details}")

    def _is_connected(self) -> bool:
        """Whether a server listens: a full one and an absent one have the same code."""
        try:
            grpc.channel_ready_future(self._channel).result(self._limits.connect_timeout)
        except grpc.FutureTimeoutError:
            return False
        return True


def _channel_options(limits: RequestLimits) -> list[tuple[str, Any]]:
    policy = {
        "maxAttempts": min(limits.retries + 1, _MOST_ATTEMPTS),
        "initialBackoff": "0.1s",
        "maxBackoff": "10s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
    }
    method = {"name": [{}], **({"retryPolicy": policy} if limits.retries else {})}
    return [
        ("grpc.service_config", json.dumps({"methodConfig": [method]})),
        ("grpc.max_receive_message_length", _LARGEST_ANSWER),
        # Time for one attempt to connect, which gRPC calls a minimum of the time between two.
        ("grpc.min_reconnect_backoff_ms", int(1000 * limits.connect_timeout)),
        ("grpc.enable_http_proxy", 0),  # as by REST
    ]


def _tensor(texts: Sequence[str]) -> tensor_pb2.TensorProto:
    shape = tensor_shape_pb2.TensorShapeProto
    return tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING,
        tensor_shape=shape(dim=[shape.Dim(size=len(texts))]),
        string_val=[text.encode() for text in texts],
    )


def _lists(array: np.ndarray) -> list:
    return _decoded(array.tolist()) if array.dtype == object else array.tolist()


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return value.decode("utf-8", "replace")


def _content(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
