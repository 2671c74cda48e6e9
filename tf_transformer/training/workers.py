"""The communication between the workers of a training: the chief, all-reduce, broadcast."""

import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_transformer.errors import ConfigError


class Workers:
    """The processes that train together; a single process if training is on one machine.

    Attributes:
        strategy: The strategy of this process.
        index: The number of this process; 0 is the chief, the only one that writes.
        count: Number of workers.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        resolver = strategy.cluster_resolver
        addresses = resolver.cluster_spec().as_dict().get("worker", [""]) if resolver else [""]
        self.strategy = strategy
        self.count = len(addresses)
        self.index = resolver.task_id if self.count > 1 else 0

    @property
    def num_gpus(self) -> int:
        """The number of GPUs that train, on all machines together."""
        if self.strategy is tf.distribute.get_strategy():  # TensorFlow's default uses one GPU
            return min(1, len(tf.config.list_logical_devices("GPU")))
        on_gpus = "GPU" in self.strategy.extended.worker_devices[0].upper()
        return self.strategy.num_replicas_in_sync if on_gpus else 0

    @property
    def have_bfloat16(self) -> bool:
        """Whether the GPUs here have matrix products in bfloat16; NVIDIA's have since Ampere."""
        details = map(
            tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU")
        )
        return all(each.get("compute_capability", (0, 0)) >= (8, 0) for each in details)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return self.index == 0

    def all_reduce_max(self, number: int) -> int:
        """Return the largest number (0 or more) of all workers; every worker must call this."""
        if self.count == 1:
            return int(number)
        numbers = [0] * self.count
        numbers[self.index] = int(number)
        return max(self._all_reduce_sum(numbers))

    def broadcast(self, content: bytes) -> bytes:
        """Return the content that the chief passes; every worker must call this."""
        if self.count == 1:
            return content
        [size] = self._all_reduce_sum([len(content) if self.is_chief else 0])
        return bytes(self._all_reduce_sum(list(content) if self.is_chief else [0] * size))

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Raise a `ConfigError` if a worker's settings, JSON values, differ from the chief's."""
        of_chief = json.loads(self.broadcast(json.dumps(settings).encode()))
        different = [
            f"{name} is {of_chief.get(name)} on the chief and {value} here"
            for name, value in settings.items()
            if of_chief.get(name) != value
        ]
        if self.all_reduce_max(bool(different)):  # so that none goes on without it
            found = "another worker would train something else, as it says"
            if different:
                found = f"worker {self.index} of {self.count} would train something else: "
                found += "; ".join(different)
            raise ConfigError(f"{found}. Give every worker the same files and options.")

    def _all_reduce_sum(self, numbers: list[int]) -> list[int]:
        tensor = tf.constant(numbers, tf.int32, [len(numbers)])
        return self.strategy.reduce("SUM", tensor, axis=None).numpy().tolist()
