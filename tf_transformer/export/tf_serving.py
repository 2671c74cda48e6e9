"""The files that TensorFlow Serving reads beside a SavedModel: warm-up, batching, configuration.

Names and rules follow the sources of its version 2.20: `saved_model_warmup_util.cc`,
`bundle_factory_util.cc`, `session_bundle_config.proto` and `main.cc`.
"""

import contextlib
import json
import os
import pathlib
import shutil
import urllib.parse
from collections.abc import Callable, Mapping

import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from tf_transformer.export.manifest import EXTRA
from tf_transformer.files import atomic_file, without_parents

WARM_UP = "tf_serving_warmup_requests"

_TEMPLATES = pathlib.Path(__file__).parent / "server"
# A text, and how often it is sent (`allowed_batch_sizes`). Most of the time is the first run of a
# signature, of several lines, and of pieces and terms, which have functions of their own (the
# second text is also a line of a glossary). Larger batches have shorter texts, or loading a large
# model would take minutes.
_WARM_UP = [("1\n1", 1), ("1\t{0}", 1)]
_WARM_UP += [
    (" ".join(map(str, range(max(1, 32 // size)))), size) for size in (1, 2, 4, 8, 16, 32, 64)
]


def write_version_files(folder: pathlib.Path, signatures: Mapping[str, Callable]) -> None:
    """Write batching parameters and warm-up requests into the folder of a SavedModel.

    Every signature has requests, so its inputs must all be string `(B,)`. The texts of the requests
    are numbers, which reveal nothing about the training data.
    """
    shutil.copyfile(_TEMPLATES / "server_batching.pbtxt", folder / "batching_params.pbtxt")
    (folder / EXTRA).mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / EXTRA / WARM_UP)) as writer:
        for name, function in sorted(signatures.items()):
            for text, size in _WARM_UP:
                # Omit the model's name, which no server compares, so that the same run exported
                # under two names has the same files.
                log = prediction_log_pb2.PredictionLog()
                log.predict_log.request.model_spec.signature_name = name
                for spec in function.input_signature:
                    tensor = tf.make_tensor_proto([text] * size, tf.string)
                    log.predict_log.request.inputs[spec.name].CopyFrom(tensor)
                writer.write(log.SerializeToString(deterministic=True))


def write_server_files(path: str | os.PathLike[str]) -> None:
    """Write the files that start a server for a folder of versions, named like the model.

    Existing files stay as they are, because their owner may have changed them.
    """
    folder = without_parents(path).absolute()
    # A JSON string is valid in YAML and in Protocol Buffers' text format.
    name = json.dumps(folder.name, ensure_ascii=False)[1:-1]
    for template in _TEMPLATES.iterdir():
        target = folder / template.name
        if target.exists():
            continue
        text = template.read_text(encoding="utf-8")
        text = text.replace("@URL@", urllib.parse.quote(folder.name))
        # In Compose files `$$` is a literal `$`.
        text = text.replace("@NAME@", name.replace("$", "$$") if target.suffix == ".yaml" else name)
        # Another export that writes the same text may rename the temporary file first.
        with contextlib.suppress(FileNotFoundError), atomic_file(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
