"""The training step: a pure function, and what is done around it on cores and devices."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_transformer.training.distribution import part_seed, seeds_of, sum_over_replicas
from tf_transformer.training.metrics import TokenLoss


class TrainingStep:
    """The `train_step` with which `fit` trains a model of a run.

    Each part of a batch goes through `compute`, which captures no variable and assigns none: parts
    run at the same time on the cores of a CPU, and XLA can compile the function for each device of
    a strategy. (It cannot compile Keras' own step, which captures the variables of one device.)
    Two collectives make an update on several devices: one for the number of tokens, and one for
    the gradients, in the optimizer.

    Loss, gradients and metrics are those of the global batch, but for rounding, and with
    `accumulation` those of the union of so many batches. `fit` then needs an endless dataset and
    `steps_per_epoch`, a number of updates.

    Args:
        model: A `SequenceModel`, compiled with a `SmoothedCrossEntropy` and a built optimizer.
        metrics: The compiled metrics, of which one is a `TokenLoss`. Their variables are sums over
            tokens. They ignore `sample_weight`, also as `weighted_metrics`.
        num_parts: Number of parts. Part i has every `num_parts`-th sentence from sentence i on.
        accumulation: Number of batches of an update, which are computed one after the other.
        jit_compile: Whether XLA compiles the step, anew for each shape of a batch: all of it on one
            device, but `compute` alone on several, since XLA compiles no collectives on CPUs, and
            with accumulation, since XLA might compute several batches at once.

    Raises:
        ValueError: No metric is a `TokenLoss`, `compile` did not receive one of them, or a number
            is below 1.

    Attributes:
        updates_together: Number of updates in a step of `fit`; see `run_together`.

    Example:
        >>> metrics = [tt.TokenLoss()]
        >>> model.compile(tt.Adam(), tt.SmoothedCrossEntropy(), metrics=metrics)
        >>> model.optimizer.build(model.trainable_variables)
        >>> model.train_step = tt.TrainingStep(model, metrics, num_parts=2)
    """

    def __init__(
        self,
        model: keras.Model,
        metrics: Sequence[keras.metrics.Metric],
        num_parts: int = 1,
        *,
        accumulation: int = 1,
        jit_compile: bool = False,
    ) -> None:
        if not any(isinstance(metric, TokenLoss) for metric in metrics):
            raise ValueError(
                "TrainingStep needs a TokenLoss among metrics, or `fit` reports no loss."
            )
        if min(num_parts, accumulation) < 1:
            raise ValueError(f"must be at least 1: {num_parts=}, {accumulation=}.")
        self._model, self._metrics = model, metrics
        self._num_parts, self._accumulation = num_parts, accumulation
        self._seeds = seeds_of(model)
        self._weights = [v for v in model.variables if all(v is not seed for seed in self._seeds)]
        self._sums = [variable for metric in metrics for variable in metric.variables]
        with keras.StatelessScope():  # Keras sets up the metrics when they are first computed
            sizes = 1, 1, model.config.target_vocab_size
            model.compute_metrics(None, tf.zeros(sizes[:2], "int32"), tf.zeros(sizes))
        compiled = {id(m) for group in model.metrics for m in getattr(group, "metrics", ())}
        if not compiled.issuperset(map(id, metrics)):
            raise ValueError("metrics must be those that `compile` received, or `fit` reports 0.")
        # Inlined, the batches of an update would not wait for each other, and fill the memory.
        is_inlined = accumulation == 1 or jit_compile
        self._compute = tf.function(  # traced once for all parts and batches
            self.compute,
            autograph=False,
            jit_compile=jit_compile or None,
            experimental_attributes=None if is_inlined else {"_noinline": True},
        )
        self._whole = self._update
        is_one = model.distribute_strategy.num_replicas_in_sync == 1
        if jit_compile and is_one and accumulation == 1:
            self._whole = tf.function(self._update, autograph=False, jit_compile=True)
        self.updates_together = 1
        if accumulation > 1:
            self._replace_train_function()

    @property
    def batches_together(self) -> int:
        """Number of batches in a step of `fit`."""
        return self.updates_together * self._accumulation

    def run_together(self, number: int) -> None:
        """Let `fit` make so many updates in one of its steps, with an endless dataset.

        A fast device would wait for Python otherwise. Keras' `steps_per_execution` fails on several
        devices (Keras 3.15.1 and TensorFlow 2.21), and applies to validation as well.
        """
        if number == self.updates_together:
            return
        self.updates_together = number
        if self.batches_together == 1:
            self._model.make_train_function(force=True)  # Keras' own, for single batches
        else:
            self._replace_train_function()

    def _replace_train_function(self) -> None:
        model, number = self._model, self.updates_together
        strategy = model.distribute_strategy

        @tf.function(autograph=False)
        def several(iterator: Any) -> dict[str, Any]:
            def one(index: tf.Tensor) -> tf.Tensor:
                strategy.run(self, [iterator.get_next() for _ in range(self._accumulation)])
                return index + 1

            tf.while_loop(lambda index: index < number, one, [tf.constant(0)])
            return model.get_metrics_result()

        model.train_function = several

    def __call__(self, *batches: Any) -> dict[str, Any]:
        """Make an update with batches `(x, y)` or `(x, y, sample_weight)`; return the metrics."""
        return self._whole(batches)

    def _update(self, batches: Sequence[Any]) -> dict[str, Any]:
        model, number, seeds = self._model, self._num_parts, self._seeds
        num_tokens = tf.add_n([model.num_predicted(batch[1]) for batch in batches])
        num_tokens = sum_over_replicas(num_tokens)
        scale = model.optimizer.scale_loss(1.0 / tf.maximum(num_tokens, 1.0))
        weights, values = (
            [tf.convert_to_tensor(v.value) for v in each] for each in (self._weights, seeds)
        )
        gradients, sums = [], []
        for batch in batches:
            results = []
            # The next batch waits for this one, whose memory it takes.
            with tf.control_dependencies([g for g in gradients if g is not None][-1:]):
                for i in range(number):
                    part = tf.nest.map_structure(
                        lambda t, i=i: t[i::number] if number > 1 else t, batch
                    )
                    own = [part_seed(value, i) for value in values]
                    results.append(self._traced(weights, own, part, scale))
            new_gradients, new_sums, new_seeds = zip(*results, strict=True)
            gradients = _added([*new_gradients, gradients] if gradients else new_gradients)
            sums, values = [*sums, *new_sums], new_seeds[0]
        for seed, value in zip(seeds, values, strict=True):
            seed.assign(value)
        sums = _added(sums)
        # Where the loss is not finite, `Adam` leaves the update out, and the means the batches.
        is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in sums])
        for total, value in zip(self._sums, sums, strict=True):
            total.assign_add(tf.where(is_finite, value, tf.zeros_like(value)))
        # An operation of this graph, for whose input an optimizer waits: see `Adam.apply`.
        gradients = [g if g is None else tf.identity(g) for g in gradients]
        model.optimizer.apply(gradients, model.trainable_weights)
        return model.get_metrics_result()

    def _traced(self, *arguments: Any) -> tuple[list, list, list]:
        """Call `compute`, which TensorFlow would trace once for each device of a strategy."""
        replica = tf.distribute.get_replica_context()
        if replica.num_replicas_in_sync == 1:
            return self._compute(*arguments)

        def spec(tensor: tf.Tensor) -> tf.TensorSpec:
            rows = [None] if tensor.shape.rank else []  # replicas may have different numbers
            return tf.TensorSpec([*rows, *tensor.shape[1:]], tensor.dtype)

        weights, seeds, batch, scale = arguments
        weights, seeds, scale = tf.nest.map_structure(
            tf.TensorSpec.from_tensor, [weights, seeds, scale]
        )
        batch = tf.nest.map_structure(spec, batch)
        # In the cross-replica context, in which there is no device.
        traced = replica.merge_call(
            lambda _: self._compute.get_concrete_function(weights, seeds, batch, scale)
        )
        return traced(*arguments)

    def compute(
        self, weights: list[tf.Tensor], seeds: list[tf.Tensor], batch: Any, scale: tf.Tensor
    ) -> tuple[list[tf.Tensor | None], list[tf.Tensor], list[tf.Tensor]]:
        """Compute a batch from tensors alone.

        Args:
            weights: The values of the model's variables but for the seeds, in their order.
            seeds: The values of its seeds.
            batch: As in a call.
            scale: float32 scalar, by which the sum of the tokens' losses is multiplied.

        Returns:
            The gradients of the trainable weights, None where there is none; what the variables of
            the metrics grow by; and the new seeds.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        model, zeros = self._model, [tf.zeros(v.shape, v.dtype) for v in self._sums]
        variables = *self._weights, *self._seeds, *self._sums
        given = zip(variables, (*weights, *seeds, *zeros), strict=True)
        with keras.StatelessScope(given) as scope:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                logits = model(x, training=True)
                labels = model.labels_predicted(y, logits)
                loss = scale * model.loss.total(labels, logits, sample_weight)
            trainable = [scope.get_current_value(v) for v in model.trainable_weights]
            gradients = tape.gradient(loss, trainable)
            for metric in self._metrics:
                metric.update_state(labels, logits)
        gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        after = [scope.get_current_value(v) for v in (*self._sums, *self._seeds)]
        return gradients, after[: len(zeros)], after[len(zeros) :]


def _added(lists: Sequence[Sequence[tf.Tensor | None]]) -> list[tf.Tensor | None]:
    """Return the sums of the tensors at the same place of each list; None where there is none."""
    return [None if each[0] is None else tf.add_n(each) for each in zip(*lists, strict=True)]


def batches_together(model: keras.Model) -> int:
    """Return how many batches one step of `fit` has."""
    return getattr(model.train_step, "batches_together", 1)
