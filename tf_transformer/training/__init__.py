"""Training with Keras' `fit`: loss, metrics, optimizers, callbacks, checkpoints, strategies."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "callbacks": ["RunLog", "SaveCheckpoints", "TranslationBleu"],
        "checkpoints": ["CheckpointError", "Checkpoints"],
        "cluster": ["Cluster"],
        "distribution": ["WorkersStrategy", "separate_seeds", "strategy_for"],
        "losses": ["SmoothedCrossEntropy"],
        "metrics": ["Perplexity", "TokenAccuracy", "TokenLoss"],
        "optimizers": ["Adam", "GradientAccumulation", "LossScaleOptimizer"],
        "schedules": ["NoamSchedule", "TrapezoidSchedule"],
        "search_choice": ["choose_search"],
    },
)
