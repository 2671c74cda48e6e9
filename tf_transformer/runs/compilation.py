"""Compilation of models for training and validation."""

import math

import keras
from keras.optimizers.schedules import LearningRateSchedule

from tf_transformer.data.token_batches import TokenBatches
from tf_transformer.run_config import RunConfig
from tf_transformer.run_tables import TrainingConfig
from tf_transformer.training.losses import SmoothedCrossEntropy
from tf_transformer.training.metrics import Perplexity, TokenAccuracy, TokenLoss
from tf_transformer.training.optimizers import Adam, LossScaleOptimizer
from tf_transformer.training.schedules import (
    NoamSchedule,
    TimedTrapezoidSchedule,
    TrapezoidSchedule,
)
from tf_transformer.training.step import TrainingStep


def make_schedule(config: RunConfig, total_steps: int | None) -> LearningRateSchedule:
    """Make the schedule of a complete configuration; without `total_steps`, time ends training."""
    training, d_model = config.training, config.model.d_model
    peak, warmup_steps = training.learning_rate, training.warmup_steps
    if training.schedule == "noam":
        return NoamSchedule(d_model, warmup_steps, peak * math.sqrt(d_model * warmup_steps))
    if total_steps is None:
        return TimedTrapezoidSchedule(peak, warmup_steps, training.decay_fraction)
    return TrapezoidSchedule(peak, total_steps, warmup_steps, training.decay_fraction)


def compile_model(
    model: keras.Model, config: TrainingConfig, schedule: LearningRateSchedule | None
) -> None:
    """Compile a model for training as in the paper (Vaswani et al. 2017, sections 5.3 and 5.4).

    `schedule` is None for a model that is only evaluated.
    """
    optimizer = None
    if schedule is not None:
        decay = config.weight_decay or None
        optimizer = Adam(schedule, weight_decay=decay, global_clipnorm=config.clip_norm or None)
        # Biases, and the scales and shifts of norms, cannot memorize a text.
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        if config.precision == "mixed_float16":
            optimizer = LossScaleOptimizer(optimizer)
    smoothing, pad_id = config.label_smoothing, model.config.pad_id
    metrics = [TokenLoss(smoothing, pad_id), TokenAccuracy(pad_id), Perplexity(pad_id)]
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(smoothing, pad_id),
        metrics=metrics,
        auto_scale_loss=False,
    )
    if optimizer is not None:
        # Keras would build it in the first step, too late to restore its state from a checkpoint.
        model.optimizer.build(model.trainable_variables)
        is_one = model.distribute_strategy.num_replicas_in_sync == 1
        num_parts = (config.batch_parts or 1) if is_one else 1
        accumulation, xla = config.accumulation_steps, bool(config.xla)
        model.train_step = TrainingStep(
            model, metrics, num_parts, accumulation=accumulation, jit_compile=xla
        )


def validate(model: keras.Model, config: TrainingConfig, batches: TokenBatches) -> dict[str, float]:
    """Return the metrics of a model with its current weights; this compiles it anew.

    They are those that training logs as `val_loss` and so on: the `loss`, `accuracy` and
    `perplexity` over all tokens, including end tokens.
    """
    compile_model(model, config, schedule=None)
    return model.evaluate(batches.dataset(num_epochs=1), verbose=0, return_dict=True)
