"""What `model.compile` and `model.fit` need to train a translation model."""
