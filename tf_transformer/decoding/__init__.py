"""Greedy and beam search over a decoding step; they know no model."""

from tf_transformer.decoding.beam import beam_search
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.hypotheses import Hypotheses, beam_score, output_limits

__all__ = ["Hypotheses", "beam_score", "beam_search", "greedy_search", "output_limits"]
