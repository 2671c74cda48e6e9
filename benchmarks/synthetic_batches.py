"""Batches of random token ids, shaped like real ones, for machines without TensorFlow."""

from typing import Any

import numpy as np

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]

PAD_ID, FIRST_ID = 0, 4
SENTENCE_LENGTHS = (16, 32, 64)  # few, because each shape is compiled
LEAST_FULL = 0.9  # sentences have 0.9 T to T tokens: about 5 % padding


def synthetic_batches(job: dict[str, Any]) -> list[Batch]:
    """Return a batch for each length, with `job["batch_tokens"]` tokens on each side.

    Returns:
        list of (source_ids, target_ids, labels), int32 arrays `(B, T)` with padding.
    """
    random = np.random.default_rng(job["seed"])
    return [_batch(random, length, job) for length in SENTENCE_LENGTHS]


def _batch(random: np.random.Generator, length: int, job: dict[str, Any]) -> Batch:
    num_sentences = max(1, job["batch_tokens"] // length)
    sides = []
    for _ in range(2):
        lengths = random.integers(int(LEAST_FULL * length), length + 1, size=num_sentences)
        lengths[0] = length
        ids = random.integers(FIRST_ID, job["vocab_size"], size=(num_sentences, length + 1))
        ids[np.arange(length + 1) > lengths[:, None]] = PAD_ID
        sides.append(ids.astype(np.int32))
    source, target = sides
    source_ids, target_ids, labels = source[:, 1:], target[:, :-1].copy(), target[:, 1:]
    target_ids[labels == PAD_ID] = PAD_ID
    return source_ids, target_ids, labels


def training_flops(
    batch: Batch, vocab_size: int, num_layers: int, d_model: int, d_ff: int
) -> float:
    """Return the number of floating-point operations of one training step on a batch.

    Only matrix products over real tokens count; a multiplication and its addition are two
    operations. The backward pass counts as two forward passes, and causal attention as half.
    Dropout, softmax, normalisation and optimizer do not count.
    """
    source_ids, _, labels = batch
    source_lengths = (source_ids != PAD_ID).sum(axis=1).astype(float)
    target_lengths = (labels != PAD_ID).sum(axis=1).astype(float)
    source, target = source_lengths.sum(), target_lengths.sum()

    square, feed_forward = d_model**2, 2 * d_model * d_ff
    encoder = source * (4 * square + feed_forward)
    decoder = target * (6 * square + feed_forward) + source * 2 * square
    attention = (
        2
        * d_model
        * (
            (source_lengths**2).sum()
            + (target_lengths**2).sum() / 2
            + (source_lengths * target_lengths).sum()
        )
    )
    logits = target * d_model * vocab_size
    return 3 * 2 * (num_layers * (encoder + decoder + attention) + logits)
