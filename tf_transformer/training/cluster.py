"""The workers that train together, as `TF_CONFIG` or Slurm names them."""

import contextlib
import os
import pathlib
import re
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from tf_transformer.errors import ConfigError, InputError

_SECONDS_BETWEEN_CALLS = 0.5  # attempts are cheap, and nobody notices half a second
# When a worker fails, the other workers get one of these errors, depending on the moment.
_FAILURES = (
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
    tf.errors.DeadlineExceededError, tf.errors.FailedPreconditionError, tf.errors.InternalError,
)  # fmt: skip


class WorkerError(InputError):
    """A worker that does not answer, or has failed; the same command may succeed later."""

    status = 138  # Kubeflow restarts what ends with 128 or more, and leaves 138 to users


class Cluster(NamedTuple):
    """The workers that train together, and which of them this process is.

    `addresses` have the form `host:port`; the first one is the chief's.
    """

    addresses: tuple[str, ...]
    index: int

    @classmethod
    def from_environment(cls) -> "Cluster | None":
        """Return the cluster of `TF_CONFIG` or of a Slurm job step; None for a single process."""
        if os.environ.get("TF_CONFIG"):
            cluster = _of_tf_config()
        # `srun` sets the number of tasks for each step; in the shell of the job it is not set.
        elif "SLURM_PROCID" in os.environ and "SLURM_STEP_NUM_TASKS" in os.environ:
            cluster = _of_slurm()
        else:
            return None
        return cluster if len(cluster.addresses) > 1 else None

    def wait_for_workers(self, seconds: float = 45) -> None:
        """Wait until every worker of the cluster can be reached.

        TensorFlow's own servers would wait for an hour. Instead, each worker listens on its address
        until it has reached all others. It then frees the port for TensorFlow's server, which
        answers the workers that still connect. TensorFlow starts in less than half of the 45
        seconds on a slow machine.
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


@contextlib.contextmanager
def worker_failures_named(run_dir: pathlib.Path) -> Iterator[None]:
    """Turn TensorFlow's various errors about a failed worker into a one-line `WorkerError`."""
    try:
        yield
    except _FAILURES as error:
        message = " ".join(error.message.split())[:200]
        raise WorkerError(
            f"this or another worker failed, or can no longer be reached; their outputs say why. "
            f"Start all workers again, with --resume to continue from the last checkpoint in "
            f"{run_dir}. (TensorFlow: {message})"
        ) from error


def _of_tf_config() -> Cluster:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        jobs = resolver.cluster_spec().as_dict()
        # The chief may have a job of its own, or be the first worker.
        chiefs, workers = jobs.pop("chief", []), jobs.pop("worker", [])
        addresses = (*chiefs, *workers)
        places = {"chief": range(len(chiefs)), "worker": range(len(chiefs), len(addresses))}
        index = places[resolver.task_type][resolver.task_id]
        if not jobs and all(address.rpartition(":")[2].isdigit() for address in addresses):
            return Cluster(addresses, index)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        pass
    raise ConfigError(
        f'TF_CONFIG must be JSON like {{"cluster": {{"worker": ["host0:12345", "host1:12345"]}}, '
        f'"task": {{"type": "worker", "index": 0}}}}; received {os.environ["TF_CONFIG"]!r}.'
    )


def _of_slurm() -> Cluster:
    try:
        # Slurm assigns GPUs to tasks with CUDA_VISIBLE_DEVICES. The resolver only needs a number of
        # GPUs that is large enough; otherwise it omits tasks.
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=int(os.environ["SLURM_STEP_NUM_TASKS"]),
            gpus_per_task=1,
            auto_set_gpu=False,
        )
        addresses = resolver.cluster_spec().job_tasks("worker")
        # The resolver sorts node10 before node2; Slurm numbers its tasks in numeric order.
        return Cluster(tuple(sorted(addresses, key=_with_numbers)), resolver.get_task_info()[1])
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"Slurm's variables name no cluster: {error}.") from None


def _with_numbers(name: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _listening_on(address: str) -> socket.socket:
    """Return a socket on the port of an address, on every interface."""
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
