"""A Transformer of random weights that translates sentences of letters."""

import numpy as np

import tf_transformer as tt

VOCAB_SIZE = 280
MAX_LENGTH = 24
EOS = 3


def random_model(randomise, seed=0, dtype=None):
    config = tt.TransformerConfig(
        VOCAB_SIZE, VOCAB_SIZE, num_layers=1, d_model=16, num_heads=2, d_ff=32, tie_embeddings=False
    )
    model = tt.Transformer(config, dtype=dtype)
    give_weights(randomise, model, seed)
    return model


def give_weights(randomise, model, seed):
    """Random weights with which some translations end by themselves and some are truncated."""
    randomise(model, seed)
    bias = model.output_projection.bias
    bias.assign_add(np.where(np.arange(VOCAB_SIZE) == EOS, 2.0, 0.0))
