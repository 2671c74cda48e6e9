"""Gradient accumulation: several batches make one update, exactly as their union would."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="tf_transformer")
class GradientAccumulation(keras.optimizers.Optimizer):
    """Hands an optimizer the mean of the gradients of so many batches.

    What Keras has for it (`gradient_accumulation_steps`) fails under `MirroredStrategy`, and shows
    a learning-rate schedule the batches instead of the updates (Keras 3.15.1).

    The mean over batches is the mean over all tokens of theirs where the batches carry the weights
    of `TokenBatches.dataset(accumulation=steps)`.

    Args:
        inner_optimizer: `keras.optimizers.Optimizer`, what makes the updates. `iterations`,
            `learning_rate` and the scale of the loss are its own: they know updates alone.
        steps: int, batches in one update.

    Raises:
        ValueError: `steps` is less than 1.
    """

    def __init__(self, inner_optimizer, steps, *, name="accumulation"):
        if steps < 1:
            raise ValueError(f"steps must be at least 1; received steps={steps}.")
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.steps = steps
        self._sums = []

    def build(self, variables):
        """Makes the sums of the gradients, and what the inner optimizer keeps."""
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

    def apply(self, grads, trainable_variables=None):
        """Adds the gradients up; with those of the last batch, makes the update."""
        if not self.built:
            self.build(trainable_variables)
        variables = trainable_variables or self._trainable_variables
        pairs = zip(grads, variables, strict=True)
        kept = [(tf.convert_to_tensor(g), v) for g, v in pairs if g is not None]
        grads, variables = [g for g, _ in kept], [v for _, v in kept]
        sums = [self._sums[self._get_variable_index(v)].value for v in variables]

        def add_up(strategy, grads):
            # Each replica keeps a sum of its own; the inner optimizer adds the replicas up.
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

        # A branch may hold the inner optimizer's exchange between replicas only if the branching
        # itself stands outside of the replicas.
        tf.distribute.get_replica_context().merge_call(add_up, args=(grads,))

    def get_config(self):
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "steps": self.steps,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inner = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        return cls(inner, config["steps"], name=config["name"])


def ends_update(model, batch):
    """Whether a batch, counted from 0 in this epoch, is the last of those that make an update."""
    if isinstance(model.optimizer, GradientAccumulation):
        return (batch + 1) % model.optimizer.steps == 0
    return True
