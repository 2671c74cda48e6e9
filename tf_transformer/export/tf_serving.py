"""What TensorFlow Serving reads beside a SavedModel: warm-up, batching, and its own configuration.

Names and rules are those of its version 2.20: `saved_model_warmup_util.cc`,
`bundle_factory_util.cc`, `session_bundle_config.proto` and `main.cc` of its sources.
"""

import contextlib
import json
import os
import pathlib
import urllib.parse
from collections.abc import Iterator

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from tf_transformer.export.manifest import EXTRA
from tf_transformer.files import atomic_file, without_parents
from tf_transformer.inference.saved_model import SAVED_MODEL

WARM_UP = "tf_serving_warmup_requests"
VERSION_BATCHING = "batching_params.pbtxt"
SERVER_BATCHING = "batching_parameters.pbtxt"
MODELS = "models.config"
MONITORING = "monitoring.config"
COMPOSE = "compose.yaml"

_INIT_SIGNATURE = "__saved_model_init_op"
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
# Batches and the words of their texts. What takes long is the first run of a signature; the larger
# a batch the shorter are its texts, so that loading a large model does not take minutes.
_WARM_UP = ((1, 1), *((size, max(1, 32 // size)) for size in _BATCH_SIZES))

_BATCHING = f"""\
# How TensorFlow Serving gathers the requests of a signature into batches (BatchingParameters).
# With --enable_per_model_batching_parameters the batching_params.pbtxt of a version counts, and of
# the file of --batching_parameters_file the threads alone.

# The largest batch, so also the most texts that a request may have.
max_batch_size {{ value: {_BATCH_SIZES[-1]} }}
# A batch is filled up to the next of these with repeated texts. The last is max_batch_size.
allowed_batch_sizes: {list(_BATCH_SIZES)}
# A batch waits for more texts no longer than this where a thread is free.
batch_timeout_micros {{ value: 1000 }}
# So many batches may wait; what comes then is refused as UNAVAILABLE, HTTP 503.
max_enqueued_batches {{ value: 32 }}
# num_batch_threads, the batches at a time, is the number of cores unless it is given.
# enable_large_batch_splitting must stay off: outputs as wide as the longest of their batch could
# not be joined again where a request is split.
"""

_MONITORING = """\
# What --monitoring_config_file reads (MonitoringConfig): metrics for Prometheus on the REST port.
prometheus_config { enable: true path: "/monitoring/prometheus/metrics" }
"""


def write_version_files(folder: pathlib.Path) -> None:
    """Writes batching parameters and warm-up requests into the folder of a SavedModel.

    The requests are of every signature, whose inputs must all be string `(B,)`. Their texts are
    numbers, which say nothing of the sentences that the model has learned from.
    """
    (folder / VERSION_BATCHING).write_text(_BATCHING, encoding="utf-8")
    content = saved_model_pb2.SavedModel.FromString((folder / SAVED_MODEL).read_bytes())
    signatures = content.meta_graphs[0].signature_def
    (folder / EXTRA).mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / EXTRA / WARM_UP)) as writer:
        for name in sorted(signatures):
            if name != _INIT_SIGNATURE:
                for request in _requests(name, signatures[name]):
                    log = prediction_log_pb2.PredictionLog()
                    log.predict_log.request.CopyFrom(request)
                    writer.write(log.SerializeToString(deterministic=True))


def write_server_files(path: str | os.PathLike[str]) -> None:
    """Writes what starts a server on a folder of versions, each file unless it exists.

    A file that exists may have been changed by its owner, so it stays as it is.

    Args:
        path: Folder of the versions, such as `saved_models/de_en`; its name is the model's.
    """
    folder = without_parents(path).absolute()
    texts = {
        MODELS: _models_config(folder.name),
        SERVER_BATCHING: _BATCHING,
        MONITORING: _MONITORING,
        COMPOSE: _compose(folder.name),
    }
    for name, text in texts.items():
        if not (folder / name).exists():
            # Another export may be writing the same text, and be faster.
            with contextlib.suppress(FileNotFoundError), atomic_file(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")


def _requests(
    name: str, signature: meta_graph_pb2.SignatureDef
) -> Iterator[predict_pb2.PredictRequest]:
    for size, words in _WARM_UP:
        texts = [" ".join(map(str, range(1, words + 1)))] * size
        # Without the model's name, which no server compares: the same run exported under two
        # names has the same files.
        request = predict_pb2.PredictRequest()
        request.model_spec.signature_name = name
        for key in signature.inputs:
            request.inputs[key].CopyFrom(tf.make_tensor_proto(texts, tf.string))
        yield request


def _models_config(name: str) -> str:
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.config.add(
        name=name, base_path=f"/models/{name}", model_platform="tensorflow"
    )
    return text_format.MessageToString(config, as_utf8=True)


def _compose(name: str) -> str:
    def quoted(text: str) -> str:
        # JSON is YAML; Compose replaces what follows a single dollar sign.
        return json.dumps(text.replace("$", "$$"), ensure_ascii=False)

    folder, url = f"/models/{name}", f"/v1/models/{urllib.parse.quote(name)}"
    # The image has no curl.
    healthy = (
        f"exec 3<>/dev/tcp/127.0.0.1/8501 && "
        f"printf 'GET %s HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' {url} "
        f""">&3 && grep -q '"AVAILABLE"' <&3"""
    )
    return f"""\
# TensorFlow Serving on the versions beside this file: docker compose up --wait
# It asks nobody who they are, so its ports are open to this machine alone.
services:
  translator:
    image: tensorflow/serving:2.20.0
    # The image's own start script would not pass on the signal that stops a container.
    entrypoint: [tensorflow_model_server]
    init: true
    command:
      - --port=8500
      - --rest_api_port=8501
      - {quoted(f"--model_config_file={folder}/{MODELS}")}
      - --enable_batching=true
      - {quoted(f"--batching_parameters_file={folder}/{SERVER_BATCHING}")}
      - --enable_per_model_batching_parameters=true
      - {quoted(f"--monitoring_config_file={folder}/{MONITORING}")}
      # A request waits in a thread of its own: by default there are 4 a core, too few for a batch.
      - --rest_api_num_threads={2 * _BATCH_SIZES[-1]}
      # By default 30 s, which a long document on a busy machine takes.
      - --rest_api_timeout_in_ms=120000
      # Each batch in the one thread that runs it, as many batches as cores: twice as fast as to
      # split its operations, and four times at batch 1.
      - --tensorflow_intra_op_parallelism=1
      - --tensorflow_inter_op_parallelism=-1
    ports:
      - "127.0.0.1:8501:8501"  # REST
      - "127.0.0.1:8500:8500"  # gRPC
    volumes:
      - type: bind
        source: .
        target: {quoted(folder)}
        read_only: true
    healthcheck:
      test: [CMD, bash, -c, {quoted(healthy)}]
      interval: 5s
      timeout: 5s
      start_period: 5m  # large models are warmed up for minutes
    restart: unless-stopped
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    cap_add: [DAC_OVERRIDE]  # to read exports that belong to another user
    security_opt: ["no-new-privileges:true"]
"""
