"""What a model is compiled with for training: schedule, optimizer, loss and metrics."""

import math

import keras
from keras.optimizers.schedules import LearningRateSchedule

from tf_transformer.config import RunConfig, TrainingConfig
from tf_transformer.training.losses import SmoothedCrossEntropy
from tf_transformer.training.metrics import Perplexity, TokenAccuracy, TokenLoss
from tf_transformer.training.optimizers import Adam, GradientAccumulation, LossScaleOptimizer
from tf_transformer.training.schedules import (
    NoamSchedule,
    TimedTrapezoidSchedule,
    TrapezoidSchedule,
)


def make_schedule(config: RunConfig, total_steps: int | None) -> LearningRateSchedule:
    """The learning-rate schedule of a complete configuration.

    Args:
        config: The configuration.
        total_steps: Updates of the whole training; None where time ends it.
    """
    training = config.training
    if training.schedule == "noam":
        factor = training.learning_rate * math.sqrt(config.model.d_model * training.warmup_steps)
        return NoamSchedule(config.model.d_model, training.warmup_steps, factor)
    if total_steps is None:
        return TimedTrapezoidSchedule(
            training.learning_rate, training.warmup_steps, training.decay_fraction
        )
    return TrapezoidSchedule(
        training.learning_rate, total_steps, training.warmup_steps, training.decay_fraction
    )


def compile_model(
    model: keras.Model, config: TrainingConfig, schedule: LearningRateSchedule
) -> None:
    """Compiles a model for training as the paper does (Vaswani et al. 2017, sections 5.3, 5.4).

    Args:
        model: A model of a call, with `config.pad_id`.
        config: The table `[training]`.
        schedule: The learning rate.
    """
    optimizer: keras.optimizers.Optimizer = Adam(schedule, global_clipnorm=config.clip_norm)
    if config.precision == "mixed_float16":
        # Inside of the accumulation: a group of batches is scaled alike, or dropped as one.
        optimizer = LossScaleOptimizer(optimizer)
    if config.accumulation_steps > 1:
        optimizer = GradientAccumulation(optimizer, config.accumulation_steps)
    _compile(model, config, optimizer)
    # Keras builds it in the first step, too late for a checkpoint to restore its state.
    model.optimizer.build(model.trainable_variables)


def compile_for_validation(model: keras.Model, config: TrainingConfig) -> None:
    """Compiles a model for `evaluate` alone, with the loss and the metrics of training.

    Args:
        model: As above.
        config: The table `[training]` of its run; with `chunked_logits` the labels are inputs.
    """
    _compile(model, config, None)


def _compile(
    model: keras.Model, config: TrainingConfig, optimizer: keras.optimizers.Optimizer | None
) -> None:
    options = {"pad_id": model.config.pad_id, "from_statistics": config.chunked_logits}
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(config.label_smoothing, **options),
        metrics=[
            TokenLoss(config.label_smoothing, **options),
            TokenAccuracy(**options),
            Perplexity(**options),
        ],
        auto_scale_loss=False,
    )
