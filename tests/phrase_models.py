"""Transformers for the phrasebook, and greedy search with them."""

import tensorflow as tf

import tf_transformer as tt
from tf_transformer.decoding.greedy import greedy_search

VOCAB_SIZE = 500
MAX_LENGTH = 40


def model_of(tokenizers, norm_first, tied, num_layers=2, dtype=None):
    source, target = tokenizers
    sizes = {"num_layers": num_layers, "d_model": 48, "num_heads": 4, "d_ff": 96}
    kind = {"norm_first": norm_first, "tie_embeddings": tied}
    config = tt.TransformerConfig(source.vocab_size, target.vocab_size, **sizes, **kind)
    return tt.Transformer(config, dtype=dtype)


def padded(rows, pad_id):
    return tf.ragged.constant(rows, tf.int32).to_tensor(pad_id)


def our_greedy(model, source_ids, tokenizer, source_eos_id=None):
    """Ids of translations of at most MAX_LENGTH tokens, and whether each was truncated."""
    end = tokenizer.eos_id if source_eos_id is None else source_eos_id
    source = padded([[*ids, end] for ids in source_ids], tokenizer.pad_id)
    limits = tf.fill([len(source_ids)], MAX_LENGTH)
    special = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}

    @tf.function(autograph=False)
    def search():
        return greedy_search(model.decode_step, model.start_decoding(source), limits, **special)

    found = search()
    rows = zip(found.ids[:, 0].numpy(), found.lengths[:, 0].numpy(), strict=True)
    return [row[:length].tolist() for row, length in rows], found.truncated[:, 0].numpy()
