"""Batches of synthetic sentences of given lengths."""

import numpy as np

from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.tokens import TokenizedText

PAD, BOS, EOS = 0, 2, 3
FIRST_ID = 4


def make_text(lengths, num_too_long=0):
    """Sentences of these (source, target) lengths; each repeats a token id of its own."""
    lengths = np.ravel(lengths).astype(int)
    ids = np.repeat(np.arange(len(lengths), dtype=np.int32) + FIRST_ID, lengths)
    return TokenizedText(ids, np.insert(np.cumsum(lengths), 0, 0), range(num_too_long))


def make_batches(lengths, batch_tokens, seed=0):
    return TokenBatches(
        make_text(lengths), batch_tokens, pad_id=PAD, bos_id=BOS, eos_id=EOS, seed=seed
    )


def random_lengths(num_pairs, longest=12, seed=0):
    return np.random.default_rng(seed).integers(0, longest + 1, (num_pairs, 2)).tolist()


def flat(batch):
    """A batch as plain lists, to compare."""
    inputs, labels = batch
    return [np.asarray(a).tolist() for a in (inputs["source_ids"], inputs["target_ids"], labels)]


def epoch_of(batches, epoch):
    return [flat(batches.batch(indices)) for indices in batches.batch_indices(epoch)]


def shape(batch):
    source, target, _ = batch
    return len(source), len(source[0]), len(target[0])
