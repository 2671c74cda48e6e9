"""The processes that train together, as `TF_CONFIG` or Slurm names them."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import socket
import time
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf_transformer.errors import ConfigError, InputError

_EXPECTED = (
    'TF_CONFIG must be JSON like {"cluster": {"worker": ["host0:12345", "host1:12345"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
_SECONDS_BETWEEN_CALLS = 0.5
# Which error the other workers get depends on the moment at which one fails.
_FAILURES = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)


class WorkerError(InputError):
    """A worker that does not answer, or has failed."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers that train together, and which of them this process is.

    Attributes:
        addresses: `host:port` of each worker; the first is the chief.
        index: This process among them.
    """

    addresses: tuple[str, ...]
    index: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Cluster | None":
        """The cluster that `TF_CONFIG` names, or the tasks of a Slurm job step.

        Returns:
            The cluster, or None where this process is alone.

        Raises:
            ConfigError: `TF_CONFIG` is invalid.
        """
        if environment.get("TF_CONFIG"):
            cluster = _of_tf_config(environment["TF_CONFIG"])
        # The shell of a job has no tasks; `srun` sets their number for each step.
        elif "SLURM_PROCID" in environment and "SLURM_STEP_NUM_TASKS" in environment:
            cluster = _of_slurm(environment["SLURM_STEP_NUM_TASKS"], environment["SLURM_PROCID"])
        else:
            return None
        return cluster if len(cluster.addresses) > 1 else None

    def wait_for_workers(self, seconds: float = 45) -> None:
        """Waits until every worker of the cluster can be reached.

        TensorFlow's own servers wait for an hour. So each worker listens on its address until it
        has reached all others; then it frees the port for TensorFlow's server, which answers the
        workers that still connect.

        Args:
            seconds: How long to wait.

        Raises:
            WorkerError: a worker does not answer, or this worker's own port is taken.
        """
        missing = [a for i, a in enumerate(self.addresses) if i != self.index]
        deadline = time.monotonic() + seconds
        with _listening_on(self.addresses[self.index]):
            while missing := [address for address in missing if not _answers(address)]:
                if time.monotonic() > deadline:
                    raise WorkerError(
                        f"worker {self.index} of {len(self.addresses)} could not reach "
                        f"{', '.join(missing)} within {seconds:.0f} seconds. Start every worker "
                        f"at the same time, and check the addresses and the firewall."
                    )
                time.sleep(_SECONDS_BETWEEN_CALLS)

    def resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The cluster as TensorFlow's strategies take it."""
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(self.addresses)}),
            task_type="worker",
            task_id=self.index,
            num_accelerators={"GPU": len(tf.config.get_visible_devices("GPU"))},
            rpc_layer="grpc",
        )


@contextlib.contextmanager
def worker_failures_named(run_dir: pathlib.Path) -> Iterator[None]:
    """Turns TensorFlow's many errors about a failed worker into one line.

    Args:
        run_dir: Named in that line.

    Raises:
        WorkerError: instead of them.
    """
    try:
        yield
    except _FAILURES as error:
        message = " ".join(error.message.split())[:200]
        raise WorkerError(
            f"this or another worker failed, or can no longer be reached; their outputs say why. "
            f"Start all workers again, with --resume to continue from the last checkpoint in "
            f"{run_dir}. (TensorFlow: {message})"
        ) from error


def _of_tf_config(text: str) -> Cluster:
    try:
        tf_config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{_EXPECTED}; received invalid JSON ({error}).") from None
    try:
        jobs, task = tf_config["cluster"], tf_config["task"]
        kind, index = task["type"], int(task["index"])
        # The chief may have a job of its own, or be the first worker.
        addresses = tuple([*jobs.get("chief", []), *jobs.get("worker", [])])
        worker = index + (len(jobs.get("chief", [])) if kind == "worker" else 0)
        is_known = set(jobs) <= {"chief", "worker"} and 0 <= index < len(jobs[kind])
        is_known = is_known and all(address.rpartition(":")[2].isdigit() for address in addresses)
    except (KeyError, TypeError, ValueError, AttributeError):
        is_known = False
    if not is_known:
        raise ConfigError(f"{_EXPECTED}; received {' '.join(text.split())}.")
    return Cluster(addresses, worker)


def _of_slurm(num_tasks: str, index: str) -> Cluster:
    try:
        # Slurm has chosen the GPUs of each task by CUDA_VISIBLE_DEVICES; the resolver only needs
        # enough of them, or it omits tasks.
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=int(num_tasks), gpus_per_task=1, auto_set_gpu=False
        )
        addresses = resolver.cluster_spec().job_tasks("worker")
        # It sorts node10 before node2, Slurm counts its tasks in the order of the numbers.
        return Cluster(tuple(sorted(addresses, key=_with_numbers)), int(index))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"Slurm's variables name no cluster: {error}.") from None


def _with_numbers(name: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _listening_on(address: str) -> socket.socket:
    """A socket on the port of an address, on every interface: its name may mean any of them."""
    host, _, port = address.rpartition(":")
    is_ipv6 = host.startswith("[") and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    try:
        return socket.create_server(("", int(port)), family=family, dualstack_ipv6=is_ipv6)
    except (OSError, OverflowError) as error:
        raise WorkerError(
            f"{address}: this worker cannot listen there ({error}). Free the port, or give another."
        ) from None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except (OSError, OverflowError):
        return False
    return True
