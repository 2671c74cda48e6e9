"""What lies around a SavedModel: warm-up, a server's configuration, the same bytes each time."""

import http.server
import os
import re
import shutil
import subprocess
import threading
import urllib.parse

import pytest
import tensorflow as tf
import yaml
from commands import command, lines_of
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

import tf_transformer as tt
from tf_transformer.export.manifest import read_manifest
from tf_transformer.export.tf_serving import write_server_files


@pytest.fixture(scope="module")
def batching(exported_version):
    """The sizes of batches, which keep the rules of the server."""
    text = (exported_version / "batching_params.pbtxt").read_text("utf-8")
    (found,) = re.findall(r"^allowed_batch_sizes: \[([\d, ]+)\]$", text, re.M)
    sizes = [int(size) for size in found.split(",")]
    assert sizes == sorted(set(sizes)) and sizes[0] == 1
    assert f"\nmax_batch_size {{ value: {sizes[-1]} }}\n" in f"\n{text}"
    # It is off, since parts of a request may have outputs of different widths.
    assert "\nenable_large_batch_splitting" not in text
    return sizes


def test_warm_up_has_every_signature_in_every_batch_size_and_says_nothing(
    exported_version, batching
):
    path = exported_version / "assets.extra" / "tf_serving_warmup_requests"
    logs = [  # as a server reads them
        prediction_log_pb2.PredictionLog.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(path))
    ]
    assert all(log.WhichOneof("log_type") == "predict_log" for log in logs)
    found, texts = set(), set()
    for request in (log.predict_log.request for log in logs):
        (size,) = {tensor.tensor_shape.dim[0].size for tensor in request.inputs.values()}
        found.add((request.model_spec.signature_name, size))
        texts.update(x for tensor in request.inputs.values() for x in tf.make_ndarray(tensor))
    names = ("serving_default", "translate_nbest", "translate_document", "score", "align")
    assert found == {(name, size) for name in names for size in batching}
    assert len(logs) <= 1000 and path.stat().st_size < 100_000
    assert all(re.fullmatch(rb"[0-9]+([ \n][0-9]+)*|1\t\{0\}", text) for text in texts)
    assert all(any(c in text for text in texts) for c in (b"\n", b"{0}")), "other functions"
    assert {1, 8, 32} <= {len(text.split()) for text in texts}


# Configuration


def service_in(folder):
    (service,) = yaml.safe_load((folder / "compose.yaml").read_text("utf-8"))["services"].values()
    return service


@pytest.mark.parametrize("name", ["demo", """it's $HOME: "x" #1, 日本"""])
def test_compose_mounts_the_folder_where_the_server_looks(batching, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    write_server_files(folder)
    text = (folder / "models.config").read_text("utf-8")
    config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    (model,) = config.model_config_list.config
    assert (model.name, model.model_platform) == (name, "tensorflow")
    assert not model.HasField("model_version_policy"), "the latest"
    service = service_in(folder)
    (folder / "compose.yaml").write_text("changed by its owner")
    write_server_files(folder)
    assert (folder / "compose.yaml").read_text() == "changed by its owner"
    (mount,) = service["volumes"]
    escaped = name.replace("$", "$$")  # Compose takes two for one
    assert mount["target"] == f"/models/{escaped}" and model.base_path == f"/models/{name}"
    assert (mount["source"], mount["read_only"]) == (".", True)
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in service["command"])
    for flag in (
        "model_config_file", "batching_parameters_file", "monitoring_config_file",
        "tensorflow_session_config_file",
    ):  # fmt: skip
        parent, _, file = flags[flag].rpartition("/")
        assert parent == mount["target"] and (folder / file).is_file()
    assert flags["enable_batching"] == flags["enable_per_model_batching_parameters"] == "true"
    # Each text of a batch waits in a thread, and each batch runs in its own.
    assert int(flags["rest_api_num_threads"]) > batching[-1]
    assert int(flags["rest_api_timeout_in_ms"]) > 30_000
    ports = [f"127.0.0.1:{flags[flag]}:{flags[flag]}" for flag in ("rest_api_port", "port")]
    assert service["ports"] == ports, "on this machine alone"


@pytest.mark.parametrize(("state", "healthy"), [("AVAILABLE", True), ("LOADING", False)])
def test_the_health_check_asks_the_server_for_the_state_of_the_model(tmp_path, state, healthy):
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(urllib.parse.unquote(self.path))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f'{{"model_version_status": [{{"state": "{state}"}}]}}'.encode())

        def log_message(self, *_):
            pass

    (tmp_path / "my model").mkdir()
    write_server_files(tmp_path / "my model")
    kind, *check = service_in(tmp_path / "my model")["healthcheck"]["test"]
    assert kind == "CMD"
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        check = [part.replace("/8501", f"/{server.server_port}") for part in check]
        done = subprocess.run(check, timeout=60)
        server.shutdown()
    assert (done.returncode == 0) == healthy
    assert asked == ["/v1/models/my model"]
    # Without a server it fails too.
    assert subprocess.run(check, timeout=60, capture_output=True).returncode != 0


# The same bytes each time


def use_one_core():
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.slow
def test_a_run_exported_by_two_processes_gives_the_same_bytes(trained_run, copy_files, tmp_path):
    # Validation text of several batches chooses the search, before the graph is saved.
    run_dir = shutil.copytree(trained_run[0], tmp_path / "run")
    config = (run_dir / "config.toml").read_text("utf-8")
    for side in ("source", "target"):
        lines = lines_of(copy_files / f"train.{side}")[:100]
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines), "utf-8")
        config = config.replace(str(copy_files / f"validation.{side}"), str(tmp_path / side))
    (run_dir / "config.toml").write_text(config, "utf-8")
    fingerprint = tt.read_parallel(tmp_path / "source", tmp_path / "target").fingerprint
    for state in run_dir.glob("*/step-*/state.json"):  # as if the run had this text
        text = re.sub('(?<="validation corpus": ")[^"]*', fingerprint, state.read_text("utf-8"))
        state.write_text(text, "utf-8")
    options = {"cwd": tmp_path, "stderr": subprocess.PIPE}
    exports = [
        subprocess.Popen(
            command("export", run_dir, tmp_path / seed), preexec_fn=prepare,
            env={**os.environ, "PYTHONHASHSEED": seed}, **options,
        )
        for seed, prepare in (("3", None), ("7", use_one_core))
    ]  # fmt: skip
    for export in exports:
        _, printed = export.communicate(timeout=300)
        assert export.returncode == 0 and b"Choosing the search" in printed, printed.decode()
    trees, manifests = [], []
    for folder in (tmp_path / "3/1", tmp_path / "7/1"):
        files = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        trees.append(
            {p: content for p, content in files.items() if p.name != "tf_transformer.json"}
        )
        manifests.append(read_manifest(folder))
        assert manifests[-1].pop("created")
    assert {path for path in trees[0] if trees[0][path] != trees[1].get(path)} == set()
    assert trees[0].keys() == trees[1].keys()
    assert manifests[0] == manifests[1]
    assert manifests[0]["search"]["sentences"] == 100
