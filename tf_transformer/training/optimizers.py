"""Optimizers: Adam with global clipping and a moving average, and gradient accumulation."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_transformer.training.distribution import sum_over_replicas


@keras.saving.register_keras_serializable(package="tf_transformer")
class Adam(keras.optimizers.Adam):
    """Keras' Adam with the paper's defaults (Vaswani et al. 2017, section 5.3), and two additions.

    Keras has both, but it clips the gradient of each replica before it adds them up, cannot
    average under `MirroredStrategy`, and overwrites the weights with the average when `fit` ends,
    so that another `fit` would not continue from the weights (Keras 3.15.1). For the same reason
    there is no `clipnorm` and no `clipvalue`: they would clip the gradients of each replica.

    Args:
        learning_rate: A float or a schedule.
        beta_1: Decay of the first moment (Kingma and Ba 2015).
        beta_2: Decay of the second moment.
        epsilon: As in Adam.
        weight_decay: Decoupled weight decay (Loshchilov and Hutter 2019), or None.
        global_clipnorm: Limit of the norm of all gradients together, those of all replicas added
            up; None for no limit (Pascanu et al. 2013, section 3.2).
        use_ema: Whether to keep a moving average of the weights (Polyak and Juditsky 1992), which
            `UseAverages` and `averaged_weights` put into the model.
        ema_momentum: What an update leaves of the average, less than 1; at the start less,
            `t / (t + 10)` after t updates, so that the first weights are soon forgotten.
        name: Name of the optimizer.
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
        use_ema: bool = False,
        ema_momentum: float = 0.999,
        name: str = "adam",
    ) -> None:
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, weight_decay=weight_decay, name=name
        )
        # Not `global_clipnorm` and `use_ema`, which are Keras' own and would act as well.
        self.clip_norm = global_clipnorm
        self.keeps_averages = use_ema
        self.average_momentum = ema_momentum
        self._averages: list[keras.Variable] = []
        self._is_swapped: keras.Variable | None = None

    def build(self, variables: list[keras.Variable]) -> None:
        """Makes the moments and the averages."""
        if self.built:
            return
        super().build(variables)
        if self.keeps_averages:
            self._averages = self.add_optimizer_variables(variables, "average")
            # A variable, so that checkpoints know where the averages are.
            self._is_swapped = self.add_variable((), dtype="int32", name="is_swapped")

    def apply(self, grads: list, trainable_variables: list[keras.Variable] | None = None) -> None:
        """Clips the gradients of all replicas together, and updates."""
        if self.clip_norm is not None:
            grads = [g if g is None else tf.convert_to_tensor(g) for g in grads]
            known = [g for g in grads if g is not None]
            norm = tf.linalg.global_norm(sum_over_replicas(known))
            scale = self.clip_norm / tf.maximum(norm, self.clip_norm)
            grads = [g if g is None else g * tf.cast(scale, g.dtype) for g in grads]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        """Updates one variable and its average."""
        super().update_step(gradient, variable, learning_rate)
        if self.keeps_averages:
            average = self._averages[self._get_variable_index(variable)]
            updates = ops.cast(self.iterations, variable.dtype)
            momentum = ops.minimum(self.average_momentum, updates / (updates + 10))
            # The difference of the two loses no more digits than they have.
            self.assign_sub(average, (1 - momentum) * (average - variable))

    @property
    def uses_averages(self) -> bool:
        """Whether the model has the averages at present."""
        return bool(self._is_swapped.numpy())

    def use_averages(self) -> None:
        """Puts the averages into the model and the weights in their place."""
        if not self.uses_averages and self.iterations.numpy() > 0:
            self._swap()

    def use_weights(self) -> None:
        """Puts the weights back."""
        if self.uses_averages:
            self._swap()

    def _swap(self) -> None:
        for variable, average in zip(self._trainable_variables, self._averages, strict=True):
            weights = variable.numpy()
            variable.assign(average.numpy())
            average.assign(weights)
        self._is_swapped.assign(1 - self._is_swapped.numpy())

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        names = ("name", "learning_rate", "beta_1", "beta_2", "epsilon", "weight_decay")
        config = super().get_config()
        return {
            **{name: config[name] for name in names},
            "global_clipnorm": self.clip_norm,
            "use_ema": self.keeps_averages,
            "ema_momentum": self.average_momentum,
        }


def averaging_optimizer(model: keras.Model) -> Adam | None:
    """The `Adam` that averages a model's weights, also inside of other optimizers, or None."""
    optimizer = getattr(model, "optimizer", None)
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    averages = isinstance(optimizer, Adam) and optimizer.keeps_averages
    return optimizer if averages and optimizer.built else None


@contextlib.contextmanager
def averaged_weights(model: keras.Model) -> Iterator[None]:
    """Gives the model the averages of its weights, if there are any, until the block ends."""
    optimizer = averaging_optimizer(model)
    if optimizer is None or optimizer.uses_averages:
        yield
        return
    optimizer.use_averages()
    try:
        yield
    finally:
        optimizer.use_weights()


@keras.saving.register_keras_serializable(package="tf_transformer")
class GradientAccumulation(keras.optimizers.Optimizer):
    """An optimizer that gives another one the mean of the gradients of several batches.

    Keras' own `gradient_accumulation_steps` fails under `MirroredStrategy`, and counts batches
    instead of updates for a learning-rate schedule (Keras 3.15.1).

    The mean over batches is the mean over all of their tokens where the batches have the weights
    of `TokenBatches.dataset(accumulation=steps)`.

    Args:
        inner_optimizer: Makes the updates. `iterations`, `learning_rate` and the scale of the loss
            are its own, which count updates.
        steps: Batches in one update.
        name: Name of the optimizer.

    Raises:
        ValueError: `steps` is less than 1.
    """

    def __init__(
        self, inner_optimizer: keras.optimizers.Optimizer, steps: int, *, name: str = "accumulation"
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1; received steps={steps}.")
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.steps = steps
        self._sums: list[keras.Variable] = []

    def build(self, variables: list[keras.Variable]) -> None:
        """Makes the sums of the gradients and the variables of the inner optimizer."""
        if self.built:
            return
        self._sums = self.add_optimizer_variables(variables, "gradient_sum")
        self.inner_optimizer.build(variables)
        super().build(variables)

    @property
    def variables(self):
        return self._variables + self.inner_optimizer.variables

    @property
    def iterations(self):
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    def scale_loss(self, loss):
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list):
        self.inner_optimizer.finalize_variable_values(var_list)

    def apply(self, grads: list, trainable_variables: list[keras.Variable] | None = None) -> None:
        """Adds the gradients up, and makes the update after those of the last batch."""
        replica = tf.distribute.get_replica_context()
        if not self.built:

            def build(strategy):
                # Outside of the replicas, each of which would create variables of its own, and of
                # the function that is traced.
                with tf.init_scope(), strategy.scope():
                    self.build(trainable_variables)

            replica.merge_call(build)
        variables = trainable_variables or self._trainable_variables
        pairs = zip(grads, variables, strict=True)
        kept = [(tf.convert_to_tensor(g), v) for g, v in pairs if g is not None]
        grads, variables = [g for g, _ in kept], [v for _, v in kept]
        sums = [self._sums[self._get_variable_index(v)].value for v in variables]

        def accumulate(strategy, grads):
            # Each replica has sums of its own; the inner optimizer adds up those of all replicas.
            for total, gradient in zip(sums, grads, strict=True):
                strategy.extended.update(
                    total, lambda t, g: t.assign_add(tf.cast(g, t.dtype)), args=(gradient,),
                    group=False,
                )  # fmt: skip
            self._iterations.assign_add(1)

            def update():
                strategy.extended.call_for_each_replica(inner_apply)
                for total in sums:
                    strategy.extended.update(
                        total, lambda t: t.assign(tf.zeros_like(t)), group=False
                    )
                return tf.constant(True)

            is_last = tf.equal(self._iterations.value % self.steps, 0)
            tf.cond(is_last, update, lambda: tf.constant(False))

        def inner_apply():
            means = [total / tf.cast(self.steps, total.dtype) for total in sums]
            self.inner_optimizer.apply(means, variables)

        # A branch may hold the inner optimizer's all-reduce only if it is taken outside of the
        # replicas.
        replica.merge_call(accumulate, args=(grads,))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "steps": self.steps,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "GradientAccumulation":
        """The optimizer of a configuration."""
        inner = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        return cls(inner, config["steps"], name=config["name"])


def step_of(model: keras.Model) -> int:
    """The updates that were made to a model."""
    return int(model.optimizer.iterations.numpy())


def ends_update(model: keras.Model, batch: int) -> bool:
    """Whether a batch, counted from 0 in this epoch, is the last one of an update."""
    if isinstance(model.optimizer, GradientAccumulation):
        return (batch + 1) % model.optimizer.steps == 0
    return True
