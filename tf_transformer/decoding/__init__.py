"""Greedy and beam search over a decoding step; they depend on no model."""
