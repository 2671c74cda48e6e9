"""Translation models, in pure Keras 3."""
