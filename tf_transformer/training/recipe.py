"""How a model is compiled for training."""

import keras

from tf_transformer.training.accumulation import GradientAccumulation
from tf_transformer.training.adam import Adam
from tf_transformer.training.losses import SmoothedCrossEntropy
from tf_transformer.training.metrics import Perplexity, TokenAccuracy, TokenLoss
from tf_transformer.training.schedules import NoamSchedule


def compile_model(model, config):
    """Compiles a model for training as the paper does (Vaswani et al. 2017, sections 5.3, 5.4).

    Args:
        model: a translation model with `config.d_model` and `config.pad_id`.
        config: `TrainingConfig`.
    """
    schedule = NoamSchedule(model.config.d_model, config.warmup_steps, config.learning_rate_factor)
    pad_id = model.config.pad_id
    optimizer = Adam(schedule, clip_norm=config.clip_norm, ema_momentum=config.ema_momentum)
    if config.precision == "mixed_float16":
        # Within the accumulation: a group of batches is scaled alike, or left out whole.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if config.accumulation_steps > 1:
        optimizer = GradientAccumulation(optimizer, config.accumulation_steps)
    from_scores = config.chunked_logits
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(config.label_smoothing, pad_id, from_scores),
        metrics=[
            TokenLoss(config.label_smoothing, pad_id, from_scores),
            TokenAccuracy(pad_id, from_scores),
            Perplexity(pad_id, from_scores),
        ],
        auto_scale_loss=False,
    )
    # Keras builds it in the first step, too late for a checkpoint to give it its state.
    model.optimizer.build(model.trainable_variables)
