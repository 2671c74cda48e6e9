"""Translation models in pure Keras 3; `tf_transformer` exports their public names."""
