"""Sentences of uneven lengths, for scripts that train in another process."""

# Source code, since such a script cannot import the tests.
TARGETS = """
import numpy as np
random = np.random.default_rng(0)

def targets(*lengths):
    # Decoder inputs and labels: a row of random ids for each length.
    labels = np.zeros((len(lengths), max(lengths)), "int32")
    for row, length in zip(labels, lengths):
        row[:length] = random.integers(4, 30, length)
    begun = np.concatenate([np.full((len(lengths), 1), 2), labels[:, :-1]], axis=1)
    return begun.astype("int32"), labels
"""
