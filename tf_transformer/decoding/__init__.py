"""Greedy and beam search over a decoding step, independent of any model."""
