"""Optimizers: Adam with global clipping, and loss scaling."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tf_transformer.training.distribution import sum_over_replicas


@keras.saving.register_keras_serializable(package="tf_transformer")
class Adam(keras.optimizers.Adam):
    """Keras' Adam with the paper's defaults (Vaswani et al. 2017, 5.3), clipping over all replicas.

    Keras clips the gradients of each replica before it adds them up (Keras 3.15.1). The arguments
    `clipnorm` and `clipvalue` are therefore left out.

    An update whose gradients are not all finite changes and counts nothing.

    Args:
        learning_rate: A float or a schedule.
        beta_1: Decay of the first moment (Kingma and Ba 2015).
        beta_2: Decay of the second moment.
        epsilon: Constant added to the denominator of the update.
        weight_decay: Decoupled weight decay (Loshchilov and Hutter 2019) of all variables that
            `exclude_from_weight_decay` does not name, or None.
        global_clipnorm: Limit of the global norm of the gradients, summed over all replicas; None
            for no limit (Pascanu et al. 2013, section 3.2).
        name: Name of the optimizer.

    Raises:
        ValueError: `global_clipnorm` is not above 0.

    Squares of gradients below 1e-4 are 0 in float16; keep weights in float32 (`mixed_float16`).

    Attributes:
        gradient_norm: The global norm of the newest gradients, before clipping.

    Example:
        >>> schedule = tt.NoamSchedule(d_model=512)
        >>> model.compile(tt.Adam(schedule, global_clipnorm=1.0), tt.SmoothedCrossEntropy())
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.98,
        epsilon: float = 1e-9,
        *,
        weight_decay: float | None = None,
        global_clipnorm: float | None = None,
        name: str = "adam",
    ) -> None:
        super().__init__(
            learning_rate, float(beta_1), float(beta_2), epsilon, weight_decay=weight_decay,
            name=name,
        )  # fmt: skip
        if global_clipnorm is not None and not global_clipnorm > 0:
            raise ValueError(f"global_clipnorm must be above 0; received {global_clipnorm}.")
        self.clip_norm = global_clipnorm  # not Keras' `global_clipnorm`, which would clip as well
        # Not a variable of Keras, which would become a part of each checkpoint.
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.gradient_norm = tf.Variable(0.0, trainable=False, aggregation=first)

    def apply(self, grads: list, trainable_variables: list[keras.Variable] | None = None) -> None:
        """Update the variables, and count the update."""
        if trainable_variables is not None:
            self.build(list(trainable_variables))  # outside the block below, for XLA
        # At the end of data of unknown size, Keras runs a step without gradients, which must not
        # count or decay. Waiting for one gradient is enough; all would have to stay in memory.
        with tf.control_dependencies([g for g in grads if g is not None][-1:]):
            super().apply(grads, trainable_variables)

    def _backend_update_step(
        self, grads: list, trainable_variables: list[keras.Variable], learning_rate: tf.Tensor
    ) -> None:
        """Add up the gradients of all replicas, clip the sums by their global norm, and update."""
        # Tensors, for Keras would square an embedding's rows before it adds up those of the same
        # token (Keras 3.15.1).
        pairs = zip(map(tf.convert_to_tensor, grads), trainable_variables, strict=True)
        pairs = self._all_reduce_sum_gradients([(gradient, v.value) for gradient, v in pairs])
        norm = tf.linalg.global_norm([tf.cast(gradient, "float32") for gradient, _ in pairs])
        self.gradient_norm.assign(norm)
        is_finite = tf.math.is_finite(norm)
        limit = np.inf if self.clip_norm is None else self.clip_norm
        scale = tf.where(is_finite & (norm > limit), limit / norm, tf.cast(is_finite, "float32"))
        # Once for all variables: the learning rate with the correction of both moments' bias, the
        # decay and the constants, which would otherwise be a tenth of the graph of a training step.
        step = ops.cast(self.iterations + 1, "float32")
        correction = ops.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        kept = 1 - learning_rate * (self.weight_decay or 0.0)
        scalars = learning_rate * correction, kept, self.beta_1, self.beta_2
        nothing = 0.0, 1.0, 1.0, 1.0  # changes, if the gradients are 0 as well
        scalars = [tf.where(is_finite, *both) for both in zip(scalars, nothing, strict=True)]
        self.iterations.assign_sub(ops.cast(~is_finite, self.iterations.dtype))  # Keras adds 1
        scalars += [tf.constant(number, "float32") for number in (0.0, self.epsilon)]
        # In float32, since GPUs have no such operation in bfloat16.
        pairs = [(tf.math.multiply_no_nan(tf.cast(g, "float32"), scale), v) for g, v in pairs]
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._distributed_tf_update_step, self._distribution_strategy, pairs, scalars
        )

    def _apply_weight_decay(self, variables: list[keras.Variable]) -> None:
        """Do nothing, because `update_step` decays."""

    def update_step(
        self, gradient: Any, variable: tf.Variable, scalars: tuple[tf.Tensor, ...]
    ) -> None:
        # One operation instead of Keras' 16, which took a third of the time of building the graph.
        index = self._get_variable_index(variable)
        moments = self._momentums[index].value, self._velocities[index].value
        rate, kept, beta_1, beta_2, zero, epsilon = (tf.cast(x, variable.dtype) for x in scalars)
        if self.weight_decay is not None and self._use_weight_decay(variable):
            variable.assign(variable * kept)
        gradient = tf.cast(gradient, variable.dtype)
        if variable.dtype == tf.float16:
            epsilon = tf.maximum(epsilon, 1e-7)  # Keras' own; 1e-9 is 0 in half precision
        if variable.dtype == tf.bfloat16:
            # The operation below has no such kernel for GPUs, and would round 0.999 to 1.
            mean, square = moments
            new_1, new_2 = (tf.cast(1 - beta, variable.dtype) for beta in scalars[2:4])
            mean.assign_add((gradient - mean) * new_1)
            square.assign_add((gradient**2 - square) * new_2)
            variable.assign_sub(rate * mean / (tf.sqrt(square) + epsilon))
            return
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=moments[0].handle, v=moments[1].handle,
            beta1_power=zero, beta2_power=zero, lr=rate, beta1=beta_1, beta2=beta_2,
            epsilon=epsilon, grad=gradient,
        )  # fmt: skip

    def get_config(self) -> dict[str, Any]:
        names = ("name", "learning_rate", "beta_1", "beta_2", "epsilon", "weight_decay")
        config = super().get_config()
        return {**{name: config[name] for name in names}, "global_clipnorm": self.clip_norm}


@keras.saving.register_keras_serializable(package="tf_transformer")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras' loss scaling for float16, where an overflow on any replica drops the whole update.

    Keras only checks the first replica of each process (Keras 3.15.1). An overflow on another one
    would make all weights infinite, and workers would wait for each other.

    Example:
        >>> optimizer = tt.LossScaleOptimizer(tt.Adam(1e-3), initial_scale=1024.0)
        >>> float(optimizer.scale_loss(tf.constant(2.0)))
        2048.0
    """

    def check_finite(self, grads: list) -> Any:
        """Return whether the gradients of all replicas are finite."""
        overflows = ops.logical_not(super().check_finite(grads))
        return ops.equal(sum_over_replicas(ops.cast(overflows, "float32")), 0.0)


def step_of(model: keras.Model) -> int:
    """Return the number of updates of a model so far."""
    return int(model.optimizer.iterations.numpy())


def gradient_norm_of(model: keras.Model) -> float:
    """Return the global norm of the gradients of a model's newest update."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return float(optimizer.gradient_norm.numpy())
