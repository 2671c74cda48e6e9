"""The cluster that TF_CONFIG or Slurm names, and how its workers wait for each other."""

import json
import os
import socket

import pytest
import tensorflow as tf
from commands import refusal
from worker_processes import free_ports, tf_config

from tf_transformer.errors import ConfigError
from tf_transformer.training.cluster import Cluster, WorkerError, worker_failures_named


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Sets variables of the environment, which has none of a cluster."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "TF_CONFIG"))]:
        monkeypatch.delenv(name)

    def set_variables(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


WORKERS = '"worker": ["a:1", "b:1"]'


@pytest.mark.parametrize(
    "text",
    [
        "host:1234",
        f'{{"cluster": {{{WORKERS}}}}}',
        f'{{"cluster": {{{WORKERS}}}, "task": {{"type": "worker", "index": 2}}}}',
        f'{{"cluster": {{{WORKERS}, "ps": ["c:1"]}}, "task": {{"type": "worker", "index": 0}}}}',
        '{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}',
    ],
)
def test_a_tf_config_that_names_no_cluster_is_refused(text, environment):
    environment(TF_CONFIG=text)
    assert "TF_CONFIG must be JSON like" in refusal(Cluster.from_environment)


def test_a_chief_is_the_first_worker(environment):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    for number, (kind, index) in enumerate([("chief", 0), ("worker", 0), ("worker", 1)]):
        task = {"type": kind, "index": index}
        environment(TF_CONFIG=json.dumps({"cluster": cluster, "task": task}))
        assert Cluster.from_environment() == Cluster(("a:1", "b:1", "c:1"), number)


SLURM = {
    "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "node[2,10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}  # fmt: skip
ALONE = {
    "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "node1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    "variables", [{}, {"TF_CONFIG": tf_config([1], 0)}, {"SLURM_PROCID": "0"}, ALONE]
)
def test_one_worker_is_no_cluster(environment, variables):
    environment(**variables)
    assert Cluster.from_environment() is None


def test_slurm_tasks_are_a_cluster(environment, monkeypatch):
    environment(**SLURM)
    addresses = ("node2:8888", "node2:8889", "node10:8888", "node10:8889")
    assert Cluster.from_environment() == Cluster(addresses, 2)
    monkeypatch.delenv("SLURM_STEP_NODELIST")
    with pytest.raises(ConfigError, match="Slurm"):
        Cluster.from_environment()


def test_a_missing_worker_ends_the_wait():
    first, second = (f"127.0.0.1:{port}" for port in free_ports())
    with pytest.raises(WorkerError, match=f"could not reach {second} within 1 seconds"):
        Cluster((first, second), 0).wait_for_workers(seconds=1)


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorkerError, match=f"{port}: this worker cannot listen there"):
            Cluster((f"127.0.0.1:{port}", "127.0.0.1:1"), 0).wait_for_workers(seconds=0)


def test_a_worker_failure_is_one_line_and_other_errors_keep_their_names():
    with pytest.raises(WorkerError, match=r"another worker .* --resume .* in run\.") as error:
        with worker_failures_named("run"):
            raise tf.errors.UnavailableError(None, None, "Connection\nreset")
    assert "\n" not in str(error.value)
    with pytest.raises(tf.errors.InvalidArgumentError), worker_failures_named("run"):
        raise tf.errors.InvalidArgumentError(None, None, "a bug")
