"""Where training runs: one device or many, one machine or many; and what they must add up."""

import tensorflow as tf

from tf_transformer.config import ConfigError
from tf_transformer.training.checkpoints import seeds_of

_BETWEEN_SEEDS = 1_000_003


def strategy_for(devices=None, cluster=None):
    """The strategy to create and compile the model in.

    Args:
        devices: str, how many of the GPUs (`"2"`), which devices (`"gpu:0,gpu:1"`, `"cpu"`), or
            None for every visible GPU, and the CPU where there is none.
        cluster: `Cluster` of workers that have met, or None. Must come before TensorFlow's
            first operation.

    Returns:
        `tf.distribute.Strategy`.

    Raises:
        ConfigError: a device is not there; those that are, are named.
    """
    if cluster is not None:
        if devices is not None:
            _show_only(_chosen(devices, tf.config.list_physical_devices()))
        return WorkersStrategy(cluster.resolver())
    if devices is None:
        chosen = tf.config.list_logical_devices("GPU")
    else:
        chosen = _chosen(devices, tf.config.list_logical_devices())
    everything = tf.config.list_logical_devices()
    if len(chosen) > 1 or (chosen and len(everything) > 1 and devices is not None):
        return tf.distribute.MirroredStrategy([device.name for device in chosen])
    # TensorFlow's own default puts everything on the one device, without a strategy's cost.
    return tf.distribute.get_strategy()


class WorkersStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """`MultiWorkerMirroredStrategy` with which `fit` of a `Transformer` works, and exactly.

    Give `fit` the same global batches on every worker, in the same order. Each replica takes its
    share of the rows of each, which may be none, so that what is trained on does not depend on the
    number of workers.

    Args:
        cluster_resolver: `tf.distribute.cluster_resolver.ClusterResolver`.
    """

    def __init__(self, cluster_resolver):
        super().__init__(cluster_resolver=cluster_resolver)

    def experimental_distribute_dataset(self, dataset, options=None):
        """The rows of this worker's replicas, from a dataset of global batches."""
        replicas = len(self.extended.worker_devices)
        first = self.cluster_resolver.task_id * replicas
        shares = range(first, first + replicas)

        def rows_of_replicas(*batch):
            parts = [
                tf.data.Dataset.from_tensors(
                    tf.nest.map_structure(
                        lambda tensor, share=share: tensor[share :: self.num_replicas_in_sync],
                        batch,
                    )
                )
                for share in shares
            ]
            together = parts[0]
            for part in parts[1:]:
                together = together.concatenate(part)
            return together

        # TensorFlow would cut every batch of a worker anew, and lose rows where it does not divide.
        shared = dataset.flat_map(rows_of_replicas).prefetch(2 * replicas)
        return self.distribute_datasets_from_function(lambda _: shared, options)

    def reduce(self, reduce_op, value, axis):
        """As its parent has it, but Keras asks for the mean of scalars over their axis 0."""
        if axis == 0 and self.experimental_local_results(value)[0].shape.rank == 0:
            axis = None
        return super().reduce(reduce_op, value, axis)


def num_workers(strategy):
    """Processes that train together."""
    return len(_addresses(strategy))


def worker_index(strategy):
    """Which of the workers this process is; 0 is the chief, who alone writes."""
    return strategy.cluster_resolver.task_id if num_workers(strategy) > 1 else 0


def highest_of_workers(strategy, number):
    """The highest of the numbers that the workers call this with; all must, at the same moment.

    Args:
        strategy: `tf.distribute.Strategy`.
        number: int from 0 on.

    Returns:
        int, the same on all workers.
    """
    workers = num_workers(strategy)
    if workers == 1:
        return int(number)
    numbers = [0] * workers
    numbers[worker_index(strategy)] = int(number)
    return max(_sum_over_workers(strategy, numbers))


def from_chief(strategy, content):
    """What the chief calls this with; all workers must, at the same moment.

    Args:
        strategy: `tf.distribute.Strategy`.
        content: bytes; those of other workers do not matter.

    Returns:
        bytes, the same on all workers.
    """
    if num_workers(strategy) == 1:
        return content
    is_chief = worker_index(strategy) == 0
    [size] = _sum_over_workers(strategy, [len(content) if is_chief else 0])
    return bytes(_sum_over_workers(strategy, list(content) if is_chief else [0] * size))


def sum_over_replicas(value):
    """The sum of a tensor over all replicas; outside of `strategy.run`, the tensor itself.

    Args:
        value: float tensor, of one shape on every replica.

    Returns:
        a tensor like it.
    """
    replica = tf.distribute.get_replica_context()  # None while Keras asks for shapes alone
    if replica is None or replica.num_replicas_in_sync == 1:
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def separate_seeds(model):
    """Lets each replica draw its own dropout.

    Keras gives all of them one seed, so that rows at the same place of two replicas lose the same
    activations (Keras 3.15.1). The first replica, whose seeds a checkpoint has, keeps them: call
    this after a checkpoint is restored, and once.

    Args:
        model: `keras.Model` that was made in the scope of a strategy.
    """
    seeds = [variable.value for variable in seeds_of(model)]

    def part():
        place = tf.distribute.get_replica_context().replica_id_in_sync_group
        for seed in seeds:
            first = tf.cast(place, seed.dtype) * _BETWEEN_SEEDS
            seed.assign_add(tf.stack([first, tf.zeros_like(first)]))

    if model.distribute_strategy.num_replicas_in_sync > 1:
        model.distribute_strategy.run(part)


def _addresses(strategy):
    resolver = strategy.cluster_resolver
    return resolver.cluster_spec().as_dict().get("worker", [""]) if resolver else [""]


def _sum_over_workers(strategy, numbers):
    total = strategy.reduce("SUM", tf.constant(numbers, tf.int32, [len(numbers)]), axis=None)
    return total.numpy().tolist()


def _chosen(wanted, devices):
    """The devices that a user names, among those that there are."""
    names = {_short_name(device): device for device in devices}
    gpus = [name for name in names if name.startswith("gpu:")]
    if wanted.isdecimal():
        number = int(wanted)
        if not 1 <= number <= len(gpus):
            raise _missing(f"{number} GPUs", names)
        return [names[name] for name in gpus[:number]]
    chosen = [name.strip().lower() for name in wanted.split(",")]
    chosen = [f"{name}:0" if name in ("cpu", "gpu") else name for name in chosen]
    absent = [name for name in chosen if name not in names]
    if absent:
        raise _missing(", ".join(absent), names)
    return [names[name] for name in dict.fromkeys(chosen)]


def _missing(what, names):
    return ConfigError(
        f"--devices: no {what} here, only {', '.join(names)}; give a number of "
        f"GPUs, names with commas between them, or leave it out for all GPUs."
    )


def _short_name(device):
    """`gpu:0` for `/physical_device:GPU:0` and for `/device:GPU:0`."""
    return ":".join(device.name.split(":")[-2:]).lower()


def _show_only(chosen):
    gpus = [device for device in chosen if device.device_type == "GPU"]
    tf.config.set_visible_devices(gpus, "GPU")
