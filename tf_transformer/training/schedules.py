"""Learning-rate schedules."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tf_transformer")
class TrapezoidSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, a constant rate, and linear decay that is zero after the last update.

    Also known as warmup-stable-decay. If the end is known, it beats schedules that depend on the
    step alone (Zhai et al. 2022, section 3.5; Hägele et al. 2024; for linear decay over the whole
    training, `decay_fraction=1`, Defazio et al. 2023).

    Args:
        peak: The constant rate.
        total_steps: Number of updates in the whole training.
        warmup_steps: Updates until the peak.
        decay_fraction: The last fraction of training, in which the rate decays; at most 1.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> schedule = tt.TrapezoidSchedule(1.0, total_steps=10, warmup_steps=2, decay_fraction=0.5)
        >>> [round(float(schedule(step)), 2) for step in range(11)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    """

    def __init__(
        self, peak: float, total_steps: int, warmup_steps: int, decay_fraction: float = 0.4
    ) -> None:
        # The rate would be wrong without an error.
        if min(total_steps, warmup_steps) < 1 or not peak > 0:
            raise ValueError("peak, total_steps and warmup_steps must be above 0.")
        if not 0 < decay_fraction <= 1:
            raise ValueError(f"decay_fraction must be above 0, at most 1; got {decay_fraction}.")
        self.peak, self.warmup_steps, self.decay_fraction = peak, warmup_steps, decay_fraction
        self.total_steps = total_steps

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of the update after `step` earlier ones, a float32 scalar."""
        step = ops.cast(step, "float32")
        warm = (step + 1.0) / self.warmup_steps
        left = ops.maximum(1.0 - self._done(step), 0.0) / self.decay_fraction
        return self.peak * ops.minimum(1.0, ops.minimum(warm, left))

    def _done(self, step: Any) -> Any:
        """Return the fraction of the training that is done after `step` updates."""
        return step / self.total_steps

    def get_config(self) -> dict[str, Any]:
        names = ("peak", "total_steps", "warmup_steps", "decay_fraction")
        return {name: getattr(self, name) for name in names}


class TimedTrapezoidSchedule(TrapezoidSchedule):
    """A `TrapezoidSchedule` for training that ends after a given time.

    The arguments are those of `TrapezoidSchedule` without `total_steps`; the decay is by time.

    Attributes:
        peak: A variable, because the recipe sets it after measuring the speed of training.
        warmup_steps: A variable, for the same reason.
        time_spent: The fraction of the time that has passed, a scalar variable. The callback
            `Limit` sets it before each update.
    """

    def __init__(self, peak: float, warmup_steps: int, decay_fraction: float = 0.4) -> None:
        super().__init__(peak, 1, warmup_steps, decay_fraction)
        options = {"dtype": "float32", "trainable": False}
        self.peak = keras.Variable(peak, name="peak", **options)
        self.warmup_steps = keras.Variable(warmup_steps, name="warmup_steps", **options)
        self.time_spent = keras.Variable(0.0, name="time_spent", **options)

    def _done(self, step: Any) -> Any:
        return ops.convert_to_tensor(self.time_spent)


@keras.saving.register_keras_serializable(package="tf_transformer")
class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

    `factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`, step counted from 1
    (Vaswani et al. 2017, section 5.3; `factor` is 1 there). The peak, at step `warmup_steps`, is
    `factor / sqrt(d_model * warmup_steps)`.

    Args:
        d_model: Width of the model.
        warmup_steps: Updates until the peak.
        factor: Scale of the whole schedule.

    Example:
        >>> schedule = tt.NoamSchedule(d_model=512, warmup_steps=4000)
        >>> [f"{float(schedule(step)):.6f}" for step in (0, 3999, 15999)]
        ['0.000000', '0.000699', '0.000349']
    """

    def __init__(self, d_model: int, warmup_steps: int = 4000, factor: float = 1.0) -> None:
        if min(d_model, warmup_steps) < 1 or not factor > 0:
            raise ValueError("d_model, warmup_steps and factor must be above 0.")
        self.d_model, self.warmup_steps, self.factor = d_model, warmup_steps, factor

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of the update after `step` earlier ones, a float32 scalar."""
        # Keras counts from 0, the paper from 1: with step 0 the first update would do nothing.
        step = ops.cast(step, "float32") + 1.0
        scale = self.factor * self.d_model**-0.5
        return scale * ops.minimum(ops.rsqrt(step), step * self.warmup_steps**-1.5)

    def get_config(self) -> dict[str, Any]:
        return {"d_model": self.d_model, "warmup_steps": self.warmup_steps, "factor": self.factor}
