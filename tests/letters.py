"""A Transformer of random weights that translates sentences of letters."""

import numpy as np

import tf_transformer as tt

PIECES = 280
MAX_LENGTH = 24
EOS = 3


def random_model(randomise, seed=0, dtype=None):
    config = tt.TransformerConfig(
        PIECES, PIECES, num_layers=1, d_model=16, num_heads=2, d_ff=32, tie_embeddings=False
    )
    model = tt.Transformer(config, dtype=dtype)
    give_weights(randomise, model, seed)
    return model


def give_weights(randomise, model, seed):
    """Weights of chance, with which some translations end by themselves and some are cut off."""
    randomise(model, seed)
    bias = model.output_projection.bias
    bias.assign_add(np.where(np.arange(PIECES) == EOS, 2.0, 0.0))
