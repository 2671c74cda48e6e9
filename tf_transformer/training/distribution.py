"""Strategies for training on one or more devices of one or more machines."""

from typing import Any

import keras
import tensorflow as tf

from tf_transformer.errors import ConfigError
from tf_transformer.machine import hide_other_gpus
from tf_transformer.training.cluster import Cluster

# Any large number, so that the seeds of a part are not those of another layer.
_SEED_DISTANCE = 1_000_003


def strategy_for(
    devices: str | None = None, cluster: Cluster | None = None
) -> tf.distribute.Strategy:
    """Return the strategy in whose scope the model is created and compiled.

    Args:
        devices: A number of GPUs (`"2"`), devices by name (`"gpu:0,gpu:1"`, `"cpu"`), or None for
            every visible GPU, or the CPU where there is no GPU.
        cluster: Workers that can reach each other (see `Cluster.wait_for_workers`), or None. With
            a cluster, call this function before TensorFlow's first operation.

    Raises:
        ConfigError: A device does not exist. The error names the devices that do.
    """
    if cluster is not None:
        if devices is not None:
            chosen = _chosen(devices, tf.config.list_physical_devices())
            gpus = [device for device in chosen if device.device_type == "GPU"]
            hide_other_gpus(gpus)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
            task_type="worker",
            task_id=cluster.index,
            num_accelerators={"GPU": len(tf.config.get_visible_devices("GPU"))},
            rpc_layer="grpc",
        )
        return WorkersStrategy(cluster_resolver=resolver)
    everything = tf.config.list_logical_devices()
    gpus = tf.config.list_logical_devices("GPU")
    chosen = gpus if devices is None else _chosen(devices, everything)
    if len(chosen) > 1 or (devices is not None and len(everything) > 1):
        return tf.distribute.MirroredStrategy([device.name for device in chosen])
    # TensorFlow's default puts everything on the one device, without the cost of a strategy.
    return tf.distribute.get_strategy()


class WorkersStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """A `MultiWorkerMirroredStrategy` with which `fit` does not depend on the number of workers.

    Give `fit` the same global batches on every worker, in the same order. Each replica takes its
    share of the sentences of each batch, which may be empty.
    """

    @property
    def replicas_here(self) -> range:
        """The replicas of this worker, among those of all."""
        number, task = len(self.extended.worker_devices), self.cluster_resolver.task_id
        return range(task * number, (task + 1) * number)

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any = None
    ) -> tf.distribute.DistributedDataset:
        """Return the batches of this worker's replicas, given a dataset of global batches."""
        replicas, number = self.replicas_here, self.num_replicas_in_sync

        def shares(*batch: Any) -> tf.data.Dataset:
            def share(index: tf.Tensor) -> Any:
                return tf.nest.map_structure(lambda t: t[index::number], batch)

            return tf.data.Dataset.range(replicas.start, replicas.stop).map(share)

        # TensorFlow would split each worker's batches again, and lose sentences of uneven batches.
        shared = dataset.flat_map(shares).prefetch(2 * len(replicas))
        return self.distribute_datasets_from_function(lambda _: shared, options)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Reduce like the parent class, but ignore axis 0 of scalars, for which Keras asks."""
        if axis == 0 and self.experimental_local_results(value)[0].shape.rank == 0:
            axis = None
        return super().reduce(reduce_op, value, axis)


def sum_over_replicas(value: Any) -> Any:
    """Return the sum over all replicas of a float tensor, or of each tensor in a list.

    Outside of `strategy.run`, the value itself is returned.
    """
    replica = tf.distribute.get_replica_context()  # None while Keras computes shapes only
    if replica is None or replica.num_replicas_in_sync == 1:
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def seeds_of(model: keras.Model) -> list[keras.Variable]:
    """Return the variables that hold the states of a model's random generators."""
    return [v for v in model.variables if v.path.endswith("seed_generator_state")]


def part_seed(seed: tf.Tensor, part: int | tf.Tensor) -> tf.Tensor:
    """Return the seed of a replica or of a part of a batch; the first has `seed` itself."""
    return seed + tf.cast(tf.stack([part, 0]), seed.dtype) * _SEED_DISTANCE


def separate_seeds(model: keras.Model) -> None:
    """Give each replica its own dropout masks.

    Keras gives all replicas the same seed, so row i of every replica loses the same activations
    (Keras 3.15.1). The first replica keeps its seeds, which are saved in checkpoints. Call this
    once, after a checkpoint is restored, with a model created in the scope of a strategy.

    Example:
        >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        >>> with strategy.scope():
        ...     model = tt.Cho(tt.ChoConfig(100, 100, d_model=8, num_units=8))
        >>> tt.separate_seeds(model)
    """
    seeds = [variable.value for variable in seeds_of(model)]

    def separate() -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for seed in seeds:
            seed.assign(part_seed(seed, replica))

    if model.distribute_strategy.num_replicas_in_sync > 1:
        model.distribute_strategy.run(separate)


def _chosen(wanted: str, devices: list) -> list:
    """Return the existing devices that a user names."""
    # `/physical_device:GPU:0` and `/device:GPU:0` both become `gpu:0`.
    names = {":".join(device.name.split(":")[-2:]).lower(): device for device in devices}
    if wanted.isdecimal():
        gpus = [name for name in names if name.startswith("gpu:")]
        chosen = gpus[: int(wanted)] if 0 < int(wanted) <= len(gpus) else [f"{wanted} GPUs"]
    else:
        chosen = [name.strip().lower() for name in wanted.split(",")]
        chosen = [f"{name}:0" if name in ("cpu", "gpu") else name for name in chosen]
    if absent := [name for name in chosen if name not in names]:
        raise ConfigError(
            f"--devices: no {', '.join(absent)} here, only {', '.join(names)}; give a number of "
            f"GPUs, names with commas between them, or omit it for all GPUs."
        )
    return [names[name] for name in dict.fromkeys(chosen)]
