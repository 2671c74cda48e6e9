"""The training step: a pure function, and what is done around it on cores and devices."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_transformer.training.distribution import part_seed, seeds_of, sum_over_replicas


class TrainingStep:
    """The `train_step` with which `fit` trains a model of a run.

    Each part of a batch goes through `compute`, which captures no variable and assigns none: parts
    run at the same time on the cores of a CPU, and XLA can compile the function for each device of
    a strategy. (It cannot compile Keras' own step, which captures the variables of one device.)
    Two collectives make an update on several devices: one for the number of tokens, and one for
    the gradients, in the optimizer.

    Loss, gradients and metrics are those of the whole global batch, but for rounding.

    Args:
        model: A `SequenceModel`, compiled with a `SmoothedCrossEntropy` and a built optimizer.
        metrics: The compiled metrics. Their variables are sums over tokens.
        num_parts: Number of parts. Part i has every `num_parts`-th sentence from sentence i on.
        jit_compile: Whether XLA compiles the step, anew for each shape of a batch: all of it on one
            device, `compute` on several, since XLA compiles no collectives on CPUs.

    Attributes:
        batches_together: See `run_together`.

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
        jit_compile: bool = False,
    ) -> None:
        self._model, self._metrics, self._num_parts = model, metrics, num_parts
        self._seeds = seeds_of(model)
        self._weights = [v for v in model.variables if all(v is not seed for seed in self._seeds)]
        self._sums = [variable for metric in metrics for variable in metric.variables]
        with keras.StatelessScope():  # Keras sets up the metrics when they are first computed
            sizes = 1, 1, model.config.target_vocab_size
            model.compute_metrics(None, tf.zeros(sizes[:2], "int32"), tf.zeros(sizes))
        self.batches_together = 1
        # Traced once for all parts.
        self._compute = tf.function(self.compute, autograph=False, jit_compile=jit_compile or None)
        self._whole = self._update
        if jit_compile and model.distribute_strategy.num_replicas_in_sync == 1:
            self._whole = tf.function(self._update, autograph=False, jit_compile=True)

    def run_together(self, number: int) -> None:
        """Let `fit` run so many batches of an endless dataset as one of its steps.

        A fast device would wait for Python otherwise. Keras' `steps_per_execution` fails on several
        devices (Keras 3.15.1 and TensorFlow 2.21), and applies to validation as well.
        """
        if number == self.batches_together:
            return
        model, self.batches_together = self._model, number
        model.make_train_function(force=True)  # Keras' own, for single batches
        if number == 1:
            return
        strategy = model.distribute_strategy

        @tf.function(autograph=False)
        def several(iterator: Any) -> dict[str, Any]:
            def one(index: tf.Tensor) -> tf.Tensor:
                strategy.run(self, args=(iterator.get_next(),))
                return index + 1

            tf.while_loop(lambda index: index < number, one, [tf.constant(0)])
            return model.get_metrics_result()

        model.train_function = several

    def __call__(self, batch: Any) -> dict[str, Any]:
        """Update the weights with a batch `(x, y)` or `(x, y, sample_weight)`; return metrics."""
        return self._whole(batch)

    def _update(self, batch: Any) -> dict[str, Any]:
        model, number, seeds = self._model, self._num_parts, self._seeds
        num_tokens = sum_over_replicas(model.num_predicted(batch[1]))
        scale = model.optimizer.scale_loss(1.0 / tf.maximum(num_tokens, 1.0))
        weights, values = (
            [tf.convert_to_tensor(v.value) for v in each] for each in (self._weights, seeds)
        )
        results = []
        for i in range(number):
            part = tf.nest.map_structure(lambda t, i=i: t[i::number] if number > 1 else t, batch)
            own = [part_seed(value, i) for value in values]
            results.append(self._traced(weights, own, part, scale))
        gradients, sums, after = zip(*results, strict=True)
        for seed, value in zip(seeds, after[0], strict=True):
            seed.assign(value)
        sums = [tf.add_n(parts) for parts in zip(*sums, strict=True)]
        # A batch whose loss is not finite is no part of a mean; `Adam` leaves its update out.
        is_finite = tf.reduce_all(tf.math.is_finite(sums))
        for total, value in zip(self._sums, sums, strict=True):
            total.assign_add(tf.where(is_finite, value, tf.zeros_like(value)))
        # An operation of this graph, for whose input an optimizer waits: see `Adam.apply`.
        total = [
            None if g[0] is None else tf.identity(tf.add_n(g)) for g in zip(*gradients, strict=True)
        ]
        model.optimizer.apply(total, model.trainable_weights)
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


def batches_together(model: keras.Model) -> int:
    """Return how many batches one step of `fit` has."""
    return getattr(model.train_step, "batches_together", 1)


def ends_update(model: keras.Model, step: int) -> bool:
    """Return whether a step of `fit`, counted from 0 in this epoch, is the last of an update."""
    return (step + 1) * batches_together(model) % getattr(model.optimizer, "steps", 1) == 0
