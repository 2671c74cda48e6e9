"""What any `fit` can use: losses, metrics, schedules, optimizers, callbacks and strategies."""
