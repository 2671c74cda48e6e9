"""Learning-rate schedules."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tf_transformer")
class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

    `factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`, step counted from 1
    (Vaswani et al. 2017, section 5.3; `factor` is 1 there). The peak, at step `warmup_steps`, is
    `factor / sqrt(d_model * warmup_steps)`.

    Args:
        d_model: D of the model.
        warmup_steps: Updates until the peak.
        factor: Scale of the whole schedule.

    Raises:
        ValueError: One of them is not greater than 0.
    """

    def __init__(self, d_model: int, warmup_steps: int = 4000, factor: float = 1.0) -> None:
        if d_model <= 0 or warmup_steps <= 0 or factor <= 0:
            raise ValueError(
                f"d_model, warmup_steps and factor must be greater than 0; received "
                f"d_model={d_model}, warmup_steps={warmup_steps}, factor={factor}."
            )
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.factor = factor

    def __call__(self, step: Any) -> Any:
        """The learning rate of the update after `step` others, a float32 scalar."""
        # Keras counts from 0, the paper from 1: at 0 the first update would be nothing.
        step = ops.cast(step, "float32") + 1.0
        scale = self.factor * self.d_model**-0.5
        return scale * ops.minimum(ops.rsqrt(step), step * self.warmup_steps**-1.5)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "factor": self.factor,
        }
