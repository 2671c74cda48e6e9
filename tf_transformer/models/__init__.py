"""Translation models, in pure Keras 3; `tf_transformer` has their public names."""
