"""A SavedModel in a graph session, as TensorFlow Serving loads and runs it.

This file does not import the package, so that the doctor's clean process can also run it.
"""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Registers the ops of SentencePiece.
import tensorflow_text  # noqa: F401
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2

_CONFIG = pathlib.Path(__file__).parent.parent / "export/server/session_config.pbtxt"
WARM_UP = "assets.extra/tf_serving_warmup_requests"
_INIT_SIGNATURE = "__saved_model_init_op"


class SavedModelSession:
    """A loaded version of a model, which threads may share.

    An operation of the graph restores the variables and no Python of the exporter runs, so a model
    that works here works in a server. Everything runs in the thread that calls `run`. Python frees
    the memory with the last reference.

    Args:
        folder: A SavedModel, such as `saved_models/de_en/1`.

    Attributes:
        signatures: The `SignatureDef` of each signature, by the name of the signature.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)
        config = text_format.Parse(_CONFIG.read_text("utf-8"), tf.compat.v1.ConfigProto())
        config.intra_op_parallelism_threads, config.inter_op_parallelism_threads = 1, -1
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        with self._session.graph.as_default():
            self.meta_graph = tf.compat.v1.saved_model.loader.load(
                self._session, ["serve"], os.path.realpath(folder)
            )
        self.signatures = dict(self.meta_graph.signature_def)
        self.signatures.pop(_INIT_SIGNATURE, None)
        self._functions = {
            name: self._session.make_callable(
                {key: tensor.name for key, tensor in definition.outputs.items()},
                [definition.inputs[key].name for key in sorted(definition.inputs)],
            )
            for name, definition in self.signatures.items()
        }

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run a signature on an array or nested lists for each input; strings are bytes."""
        # Strings are objects, because NumPy's string types drop NULs at the end of a text.
        arrays = [
            np.asarray(inputs[name], dtype=tf.as_dtype(tensor.dtype).as_numpy_dtype)
            for name, tensor in sorted(self.signatures[signature].inputs.items())
        ]
        return self._functions[signature](*arrays)

    def warm_up_requests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield a signature and its inputs for each record; without records, for each signature.

        Damaged files and records raise the errors of TensorFlow and Protocol Buffers.
        """
        path = self.folder / WARM_UP
        if not path.exists():
            for name, signature in self.signatures.items():
                yield name, {key: [b"1 2 3"] for key in signature.inputs}
            return
        # An iterator that is over a minute old may wait for another minute when it ends.
        records = tf.data.TFRecordDataset(os.path.realpath(path))
        for record in list(records.as_numpy_iterator()):
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            inputs = {key: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()}
            yield request.model_spec.signature_name or "serving_default", inputs
