"""Models that translate sentences of letters: of random weights, and of known answers."""

import dataclasses

import numpy as np
import tensorflow as tf
from small_models import has_setting, small_config

import tf_transformer as tt
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


def translator_of(model, tokenizer, **search):
    """A translator with one tokenizer, which searches as `SEARCH` says but for what is given."""
    search = dataclasses.replace(SEARCH, **search)
    return tt.Translator.from_model(model, tokenizer, tokenizer, search)


class EchoModel:
    """A translation model whose translation of a source is the source itself."""

    weights = ()

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def start_decoding(self, source_ids):
        return {"target": {"ids": source_ids}}

    def decode_step(self, token_ids, index, cache):
        source_ids = cache["target"]["ids"]
        column = tf.minimum(index, tf.shape(source_ids)[1] - 1)
        return tf.one_hot(source_ids[:, column], self.vocab_size), cache


class FirstSentenceModel(EchoModel):
    """Translates the first sentence of a source, as a model does that has learned from single ones.

    It ends after a full stop, an exclamation mark or a question mark.
    """

    def __init__(self, tokenizer):
        super().__init__(tokenizer.vocab_size)
        self.eos_id = tokenizer.eos_id
        self.stops = tf.constant([tokenizer.encode([f"a{stop}"])[0][-1] for stop in ".!?"])

    def decode_step(self, token_ids, index, cache):
        logits, cache = super().decode_step(token_ids, index, cache)
        has_ended = tf.reduce_any(token_ids[:, None] == self.stops, axis=1, keepdims=True)
        return tf.where(has_ended, tf.one_hot(self.eos_id, self.vocab_size), logits), cache
