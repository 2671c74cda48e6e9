"""What any `fit` can use: losses, metrics, schedules, optimizers, callbacks and strategies."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "callbacks": ["TranslationBleu"],
        "distribution": ["separate_seeds"],
        "losses": ["SmoothedCrossEntropy"],
        "metrics": ["Perplexity", "TokenAccuracy", "TokenLoss"],
        "optimizers": ["Adam", "GradientAccumulation", "LossScaleOptimizer"],
        "schedules": ["NoamSchedule", "TrapezoidSchedule"],
    },
)
