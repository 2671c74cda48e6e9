"""Measure requests per second and latency of the local server, with and without batching.

    python benchmarks/serve.py saved_models/demo --source test.de
    python benchmarks/serve.py saved_models/demo --clients 1 8 --seconds 1 --rounds 1

A request has one sentence. Two servers, `tf-transformer serve` with and without shared batches,
take turns with direct calls of the SavedModel's signature, each in its own process; medians of the
rounds are compared. Then one client sends sentences beside two that send documents. The last line
of the output is JSON.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import engine
import load
import numpy as np
from spread import fields, ratio
from texts import read_texts

# What each server's process does first.
SERVERS = {
    "batching": "",
    "no_batching": "from tf_transformer.serving import batcher; batcher.MAX_TEXTS = 0; ",
}
# Direct calls by name, and whether operations run in the thread that calls them.
DIRECT = {"direct": False, "direct_one_thread": True}
TARGETS = {
    "batching_gain": "at least 4",
    "p50_ratio": "at most 1.15",
    "documents_ratio": "none: sentences wait for documents that occupy all cores",
    "health_ms": "at most 50",
}
START_SECONDS = 120


def main() -> None:
    options = parse()
    texts = read_texts(options.source)
    with contextlib.ExitStack() as processes:
        askers = {
            name: processes.enter_context(server(options.saved_model, first))
            for name, first in SERVERS.items()
        }
        for name, in_callers_thread in DIRECT.items():
            askers[name] = processes.enter_context(
                engine.process(direct, options.saved_model, in_callers_thread)
            )
        rounds = measure(askers, texts, options)
        rounds["documents"] = measure_documents(askers["batching"], texts, options)
    results = {cell: medians(of_cell) for cell, of_cell in rounds.items()}
    print(json.dumps({**results, **ratios(rounds)}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("saved_model", help="the folder of versions, such as saved_models/demo")
    parser.add_argument(
        "--source", help="sentences, one a line, plain or gzip; default: the phrasebook's test part"
    )
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument(
        "--document", type=int, default=2000, help="sentences in a document, of 100,000 characters"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds, before all rounds")
    return parser.parse_args()


Rounds = dict[str, list[dict[str, float]]]  # measurements by name

# What is measured: functions (texts, clients, seconds) -> measurement, see `load.load`; servers
# also take documents

Ask = Callable[..., dict[str, Any]]


@contextlib.contextmanager
def server(saved_model: str, first: str) -> Iterator[Ask]:
    """Start a server, and yield a function that asks it from another process."""
    port = free_port()
    name = pathlib.Path(saved_model).resolve().name
    with tempfile.TemporaryFile() as log:
        code = f"import sys; {first}from tf_transformer import cli; sys.exit(cli.main())"
        started = subprocess.Popen(
            [sys.executable, "-c", code, "serve", saved_model, f"--port={port}"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},  # as the command sets it
        )
        try:
            wait_until_ready(started, f"http://127.0.0.1:{port}/v1/models/{name}", log)
            path = f"/v1/models/{name}:predict"
            with engine.process(ask_server, port, path) as ask:
                yield ask
        finally:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(60)
            except subprocess.TimeoutExpired:
                started.kill()


def wait_until_ready(started: subprocess.Popen, url: str, log: Any) -> None:
    from tf_transformer.serving import Client, ServingError

    end = time.monotonic() + START_SECONDS
    with Client(url, retries=0, timeout=5) as client:
        while time.monotonic() < end and started.poll() is None:
            with contextlib.suppress(ServingError):
                if any(version["state"] == "AVAILABLE" for version in client.status()):
                    return
            time.sleep(0.1)
    log.seek(0)
    sys.exit(f"the server did not start:\n{log.read().decode('utf-8', 'replace')[-4000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask_server(port: int, path: str) -> Ask:
    return lambda *job: load.load(port, path, *job)


def direct(saved_model: str, in_callers_thread: bool) -> Ask:
    """Return a function that calls `serving_default` with one text after the other."""
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # as the server
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    from tf_transformer.inference.versions import find_saved_model
    from tf_transformer.machine import run_in_callers_thread

    if in_callers_thread:
        run_in_callers_thread()
    loaded = tf.saved_model.load(os.fspath(find_saved_model(saved_model)))
    translate = loaded.signatures["serving_default"]

    def ask(texts, clients, seconds):
        latencies, started, cpu = [], time.perf_counter(), time.process_time()
        while (before := time.perf_counter()) - started < seconds:
            text = tf.constant([texts[len(latencies) % len(texts)]])
            translate(text=text)["translation"].numpy()
            latencies.append(time.perf_counter() - before)
        took = time.perf_counter() - started
        return {
            "latencies": latencies, "seconds": took, "cpu_seconds": time.process_time() - cpu
        }  # fmt: skip

    return ask


# Measuring


def measure(
    askers: dict[str, Ask], texts: list[str], options: argparse.Namespace
) -> dict[str, Rounds]:
    """Measure all askers in turns for each number of clients."""
    found = {}
    for ask in askers.values():
        ask(texts, 1, options.warm_up)  # TensorFlow optimizes a graph in its first run
    for clients in options.clients:
        # Direct calls are measured with one client only.
        taking_turns = {k: v for k, v in askers.items() if clients == 1 or k not in DIRECT}
        rounds: Rounds = {name: [] for name in taking_turns}
        for round_number in range(-1, options.rounds):  # the first warms up
            for name, ask in taking_turns.items():
                measured = summary(ask(texts, clients, options.seconds))
                if round_number >= 0:
                    rounds[name].append(measured)
        show(rounds, f"{clients:3d} clients")
        found[f"clients_{clients}"] = rounds
    return found


def measure_documents(ask: Ask, texts: list[str], options: argparse.Namespace) -> Rounds:
    """Measure one client alone and beside two that send documents, in turns."""
    document = "\n".join(itertools.islice(itertools.cycle(texts), options.document))
    rounds: Rounds = {"alone": [], "beside_two": []}
    for _ in range(options.rounds):
        rounds["alone"].append(summary(ask(texts, 1, options.seconds)))
        # A document takes seconds.
        found = ask(texts, 1, 3 * options.seconds, [document] * 2)
        per_second = len(found["documents"]) * options.document / found["seconds"]
        rounds["beside_two"].append(summary(found) | {"document_sentences_per_second": per_second})
    show(rounds, "documents  ")
    return rounds


def medians(rounds: Rounds) -> dict[str, dict[str, float]]:
    """Return the medians of the rounds; of health, return the worst."""
    return {
        name: {
            key: round((max if key == "health_ms" else statistics.median)(r[key] for r in found), 3)
            for key in found[0]
        }
        for name, found in rounds.items()
    }


def show(rounds: Rounds, title: str) -> None:
    for name, values in medians(rounds).items():
        line = "  ".join(f"{key} {value}" for key, value in values.items())
        print(f"{title}  {name:18s} {line}", flush=True)


def summary(found: dict[str, Any]) -> dict[str, float]:
    latencies = 1000 * np.array(found["latencies"])
    p50, p99 = np.percentile(latencies, [50, 99])
    values = {
        "requests_per_second": len(latencies) / found["seconds"],
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "asking_cpu": found["cpu_seconds"] / found["seconds"],
    }
    if found.get("health"):
        values["health_ms"] = 1000 * max(found["health"])
    return values


def ratios(rounds: dict[str, Rounds]) -> dict[str, Any]:
    """Return the ratios that were measured, and print them with their targets."""

    def values(cell: str, name: str, key: str) -> list[float]:
        return [of_round[key] for of_round in rounds[cell][name]]

    found = {}
    most = max(int(cell.removeprefix("clients_")) for cell in rounds if cell != "documents")
    if most > 1:
        speeds = (values(f"clients_{most}", name, "requests_per_second") for name in SERVERS)
        found["batching_gain"] = ratio(*speeds)
    if "clients_1" in rounds:
        direct = [values("clients_1", name, "p50_ms") for name in DIRECT]
        server = values("clients_1", "batching", "p50_ms")
        found["p50_ratio"] = ratio(server, min(direct, key=statistics.median))
    both = (values("documents", name, "p50_ms") for name in ("beside_two", "alone"))
    found["documents_ratio"] = ratio(*both)
    loads = [of_cell["batching"] for cell, of_cell in rounds.items() if cell != "documents"]
    loads += rounds["documents"].values()
    worst = round(max(of_round["health_ms"] for load in loads for of_round in load), 3)
    for name, value in {**found, "health_ms": worst}.items():
        print(f"{name} {value} (target: {TARGETS[name]})", flush=True)
    return {**fields(found), "health_ms": worst}


if __name__ == "__main__":
    sys.exit(main())
