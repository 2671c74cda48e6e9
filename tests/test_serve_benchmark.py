"""The benchmark of the server: what asks it, and with the smallest sizes the whole."""

import importlib
import os
from pathlib import Path

import model_servers
import pytest
from commands import last_json, run_python
from model_servers import Answer, Broken, Late

ROOT = Path(__file__).parents[1]
PATH = "/v1/models/demo:predict"


@pytest.fixture
def load(monkeypatch):
    """The function of the benchmarks that asks a server."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("load").load


@pytest.fixture
def server(monkeypatch):
    def health(handler):
        Answer(200, {}).send(handler)

    monkeypatch.setattr(model_servers._Handler, "do_GET", health, raising=False)
    with model_servers.rest_server() as server:
        yield server


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(503, {"error": "queue is full"}), "queue is full"),
        (Broken(0, b""), "closed a connection"),
        (Late(0, b""), "no answer in 0.3 seconds"),
    ],
)
def test_a_server_that_fails_is_no_measurement(load, server, answer, message):
    server.script = [answer]
    with pytest.raises(RuntimeError, match=message):
        load(server.server_port, PATH, ["a"], 1, 0.3)


@pytest.mark.slow
def test_the_benchmark_with_the_smallest_sizes(exported_run):
    pytest.importorskip("uvicorn")
    options = ["--clients", "1", "4", "--seconds=0.5", "--rounds=2", "--warm-up=1.5"]
    command = [ROOT / "benchmarks" / "serve.py", exported_run[0], *options, "--document=20"]
    printed = run_python(*command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    results = last_json(printed)
    one, four = results["clients_1"], results["clients_4"]
    assert one.keys() == {"batching", "no_batching", "direct", "direct_one_thread"}
    assert four.keys() == {"batching", "no_batching"}
    for values in [*one.values(), *four.values()]:
        assert values["requests_per_second"] > 0
        assert 0 < values["p50_ms"] <= values["p99_ms"]
    for name in ("batching_gain", "p50_ratio", "documents_ratio"):
        low, high = results[f"{name}_spread"]
        assert 0 < low <= high
        assert results[name] is None or low <= results[name] <= high
    speeds = [four[name]["requests_per_second"] for name in ("batching", "no_batching")]
    low, high = results["batching_gain_spread"]
    assert low - 0.01 <= speeds[0] / speeds[1] <= high + 0.01
    alone, beside = (results["documents"][name] for name in ("alone", "beside_two"))
    assert beside["document_sentences_per_second"] > 0
    assert alone["p50_ms"] > 0 and results["health_ms"] >= beside["health_ms"] > 0
    assert "(target: at least 4)" in printed
