"""Adam, with clipping by the norm of the whole batch's gradient and a moving average of weights."""

import contextlib

import keras
import tensorflow as tf

from tf_transformer.training.distribution import sum_over_replicas


@keras.saving.register_keras_serializable(package="tf_transformer")
class Adam(keras.optimizers.Adam):
    """Keras' Adam with the paper's defaults (Vaswani et al. 2017, section 5.3), and two additions.

    Keras has both, but clips the gradient of each replica before it adds them up, cannot average
    under `MirroredStrategy`, and writes the average over the weights when `fit` ends, so that
    another `fit` would not go on from where this one was (Keras 3.15.1).

    Args:
        learning_rate: float or schedule.
        beta_1, beta_2, epsilon: floats, as in Adam (Kingma and Ba 2015).
        clip_norm: float, the norm of all gradients together that is not exceeded; None for no
            limit (Pascanu et al. 2013, section 3.2).
        ema_momentum: float less than 1, what an update leaves of the average of the weights
            (Polyak and Juditsky 1992); less in the beginning, `t / (t + 10)` after t updates, so
            that the first weights are soon forgotten. None for no average.
    """

    def __init__(
        self,
        learning_rate,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        clip_norm=None,
        ema_momentum=None,
        *,
        name="adam",
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name)
        self.clip_norm = clip_norm
        self.average_momentum = ema_momentum
        self._averages = []
        self._is_swapped = None

    def build(self, variables):
        """Makes the moments and the averages."""
        if self.built:
            return
        super().build(variables)
        if self.average_momentum is not None:
            self._averages = self.add_optimizer_variables(variables, "average")
            # A variable, so that checkpoints know where the averages are.
            self._is_swapped = self.add_variable((), dtype="int32", name="is_swapped")

    def apply(self, grads, trainable_variables=None):
        """Clips the gradients of all replicas together, and updates."""
        if self.clip_norm is not None:
            grads = [g if g is None else tf.convert_to_tensor(g) for g in grads]
            known = [g for g in grads if g is not None]
            norm = tf.linalg.global_norm(sum_over_replicas(known))
            scale = self.clip_norm / tf.maximum(norm, self.clip_norm)
            grads = [g if g is None else g * tf.cast(scale, g.dtype) for g in grads]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable and its average.

        One operation of TensorFlow does what Keras does in fifteen, which makes a smaller graph.
        """
        index = self._get_variable_index(variable)
        dtype = variable.dtype
        update = tf.cast(self.iterations.value + 1, dtype)
        beta_1, beta_2 = tf.cast(self.beta_1, dtype), tf.cast(self.beta_2, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.pow(beta_1, update),
            beta2_power=tf.pow(beta_2, update),
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.cast(self.epsilon, dtype),
            grad=tf.cast(tf.convert_to_tensor(gradient), dtype),
        )
        if self.average_momentum is not None:
            average = self._averages[index]
            updates = tf.cast(self.iterations.value, dtype)
            momentum = tf.minimum(tf.cast(self.average_momentum, dtype), updates / (updates + 10))
            # The difference of the two loses no more digits than they have.
            self.assign_sub(average, (1 - momentum) * (average - variable))

    @property
    def uses_averages(self):
        """Whether the model has the averages at present."""
        return bool(self._is_swapped.numpy())

    def use_averages(self):
        """Puts the averages into the model, and the weights in their place, if they are not."""
        if not self.uses_averages and self.iterations.numpy() > 0:
            self._swap()

    def use_weights(self):
        """Puts the weights back."""
        if self.uses_averages:
            self._swap()

    def _swap(self):
        for variable, average in zip(self._trainable_variables, self._averages, strict=True):
            weights = variable.numpy()
            variable.assign(average.numpy())
            average.assign(weights)
        self._is_swapped.assign(1 - self._is_swapped.numpy())

    def get_config(self):
        names = ("name", "learning_rate", "beta_1", "beta_2", "epsilon")
        config = super().get_config()
        return {
            **{name: config[name] for name in names},
            "clip_norm": self.clip_norm,
            "ema_momentum": self.average_momentum,
        }


def _averaging(model):
    """The `Adam` that averages a model's weights, also within other optimizers, or None."""
    optimizer = getattr(model, "optimizer", None)
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    averages = isinstance(optimizer, Adam) and optimizer.average_momentum is not None
    return optimizer if averages and optimizer.built else None


@contextlib.contextmanager
def averaged_weights(model):
    """Within it the model has the averages of its weights, if it has any; after it, what it had."""
    optimizer = _averaging(model)
    if optimizer is None or optimizer.uses_averages:
        yield
        return
    optimizer.use_averages()
    try:
        yield
    finally:
        optimizer.use_weights()


class UseAverages(keras.callbacks.Callback):
    """Lets validation, and whatever happens at the end of an epoch, see the averages of weights.

    After `fit` the model has the averages too; another `fit` with this callback goes on from the
    weights. It does nothing where the optimizer is no `Adam` with `ema_momentum`. Put it first.
    """

    def on_epoch_begin(self, epoch, logs=None):
        optimizer = _averaging(self.model)
        if optimizer is not None:
            optimizer.use_weights()

    def on_test_begin(self, logs=None):
        self.on_epoch_end(0)

    def on_epoch_end(self, epoch, logs=None):
        optimizer = _averaging(self.model)
        if optimizer is not None:
            optimizer.use_averages()
