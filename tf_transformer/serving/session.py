"""A SavedModel in a graph session, as TensorFlow Serving loads and runs it.

This file imports nothing else of the package, so that the doctor's clean process can run it too.
"""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Registers the ops of SentencePiece.
import tensorflow_text  # noqa: F401
from tensorflow_serving.apis import prediction_log_pb2

WARM_UP = "assets.extra/tf_serving_warmup_requests"
_INIT_SIGNATURE = "__saved_model_init_op"
_MOST_RECORDS = 1000  # TensorFlow Serving does not load a model with more


class TensorSpec(NamedTuple):
    """An input or output: NumPy's name of its type or `"string"`, and its shape, None if any."""

    dtype: str
    shape: tuple[int | None, ...]


class Signature(NamedTuple):
    """What a signature takes and returns, by name."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


class SavedModelSession:
    """One version of a model, loaded. Threads may share it.

    The graph's own operation restores the variables and no Python of the exporter runs, so what
    works here works in a server. Python frees the memory with the last reference.

    Args:
        folder: A SavedModel, such as `saved_models/de_en/1`.
        threads: Threads of one operation, and operations at a time; None is TensorFlow's choice.
            With 1, everything runs in the thread that calls `run`.

    Raises:
        OSError: The SavedModel cannot be read.
        ValueError: The folder holds no SavedModel.
        tf.errors.OpError: The SavedModel is damaged, or has an operation that is not registered.
    """

    def __init__(self, folder: str | os.PathLike[str], threads: int | None = None) -> None:
        self.folder = pathlib.Path(folder)
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads or 0,
            inter_op_parallelism_threads=-1 if threads == 1 else threads or 0,
        )
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        with self._session.graph.as_default():
            self.meta_graph = tf.compat.v1.saved_model.loader.load(
                self._session, ["serve"], os.path.realpath(folder)
            )
        self.signatures, self._functions = {}, {}
        for name, definition in self.meta_graph.signature_def.items():
            if name == _INIT_SIGNATURE:
                continue
            self.signatures[name] = Signature(_specs(definition.inputs), _specs(definition.outputs))
            self._functions[name] = self._session.make_callable(
                {key: tensor.name for key, tensor in definition.outputs.items()},
                [tensor.name for tensor in definition.inputs.values()],
            )

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs a signature on an array or nested lists for each input; strings are bytes."""
        # Objects, because NumPy's own strings would drop NULs at the end of a text.
        arrays = [
            np.asarray(inputs[name], dtype=object if spec.dtype == "string" else spec.dtype)
            for name, spec in self.signatures[signature].inputs.items()
        ]
        return self._functions[signature](*arrays)

    def warm_up_requests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the recorded warm-up requests, or one for each signature if none are recorded.

        Yields:
            The name of a signature and its inputs.

        Raises:
            ValueError: TensorFlow Serving could not replay a record, or there are too many.
            tf.errors.OpError: The file is damaged.
            google.protobuf.message.DecodeError: A record is not a `PredictionLog`.
        """
        path = self.folder / WARM_UP
        if not path.exists():
            for name, signature in self.signatures.items():
                yield name, {key: [b"1 2 3"] for key in signature.inputs}
            return
        records = tf.data.TFRecordDataset(os.path.realpath(path)).as_numpy_iterator()
        for number, record in enumerate(records, start=1):
            if number > _MOST_RECORDS:
                raise ValueError(f"there are more than {_MOST_RECORDS:,} warm-up records")
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            name = request.model_spec.signature_name or "serving_default"
            given = {key: tf.as_dtype(tensor.dtype).name for key, tensor in request.inputs.items()}
            inputs = self.signatures[name].inputs if name in self.signatures else {}
            if not inputs or given != {key: spec.dtype for key, spec in inputs.items()}:
                raise ValueError(f"warm-up record {number} gives {given} to the signature {name}")
            yield name, {key: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()}

    def close(self) -> None:
        """Frees the memory. No call may be running."""
        self._session.close()


def _specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(
            tf.as_dtype(tensor.dtype).name,
            tuple(None if axis.size < 0 else axis.size for axis in tensor.tensor_shape.dim),
        )
        for name, tensor in tensors.items()
    }
