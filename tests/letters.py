"""Models of random weights that translate sentences of letters."""

import numpy as np
from small_models import has_setting, small_config

from tf_transformer.inference.search import Search
from tf_transformer.models.architectures import build_model

VOCAB_SIZE = 280
MAX_LENGTH = 24
# With random weights most translations repeat themselves; a second search takes as long to trace.
SEARCH = Search(max_length=MAX_LENGTH, repair_loops=False)
EOS = 3


def random_model(
    randomise, seed=0, dtype=None, architecture="transformer", vocab_size=VOCAB_SIZE, **settings
):
    sizes = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32, "num_units": 16}
    sizes = {name: size for name, size in sizes.items() if has_setting(architecture, name)}
    sizes |= {"source_vocab_size": vocab_size, "target_vocab_size": vocab_size}
    config = small_config(architecture, tie_embeddings=False, **sizes, **settings)
    model = build_model(config, dtype)
    give_weights(randomise, model, seed)
    if not has_setting(architecture, "num_heads"):  # states without a norm say less
        for variable in model.trainable_variables:
            # Not the embeddings: larger ones saturate every gate.
            if len(variable.shape) > 1 and "embedding" not in variable.path:
                variable.assign(4.0 * variable)
    return model


def give_weights(randomise, model, seed):
    """Random weights with which some translations end by themselves and some are truncated."""
    randomise(model, seed)
    bias = model.output_projection.bias
    bias.assign_add(np.where(np.arange(bias.shape[0]) == EOS, 2.0, 0.0))
