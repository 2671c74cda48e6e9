"""Losses, metrics, schedules, optimizers, callbacks and strategies for any `fit`."""
