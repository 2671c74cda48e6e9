"""The layers of the models, in pure Keras 3; their public names are in `tf_transformer`."""
