"""Warm-up records of a SavedModel, read as TensorFlow Serving reads them.

This file imports nothing else of the package, so that a process without it can run it too.
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

FILE = "assets.extra/tf_serving_warmup_requests"
# With more, a server does not load the model.
MOST_RECORDS = 1000


def read_records(path: pathlib.Path) -> list[bytes]:
    """The records of a TFRecord file.

    Raises:
        tf.errors.OpError: It is damaged, or no such file.
    """
    return list(tf.data.TFRecordDataset(os.path.realpath(path)).as_numpy_iterator())


def request_of(record: bytes, signatures: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The signature that a record asks for, and its inputs by name.

    Args:
        record: A `PredictionLog`.
        signatures: As `Servable` has them.

    Raises:
        ValueError: A server could not replay it.
        google.protobuf.message.DecodeError: It is no `PredictionLog`.
    """
    log = prediction_log_pb2.PredictionLog.FromString(record)
    if not log.HasField("predict_log"):
        raise ValueError("is no request to predict")
    request = log.predict_log.request
    name = request.model_spec.signature_name or "serving_default"
    if name not in signatures:
        raise ValueError(f"asks for the signature {name!r}, which is not there")
    expected = {key: spec.dtype for key, spec in signatures[name].inputs.items()}
    given = {key: tf.as_dtype(tensor.dtype).name for key, tensor in request.inputs.items()}
    if given != expected:
        raise ValueError(f"gives {given} to {name}, which takes {expected}")
    return name, {key: tf.make_ndarray(request.inputs[key]) for key in expected}
