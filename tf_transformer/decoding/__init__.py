"""Greedy and beam search over a decoding step; they depend on no model."""

from tf_transformer.decoding.beam import beam_search
from tf_transformer.decoding.cache import TranslationModel
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.result import Hypotheses, beam_score, output_limits

__all__ = [
    "Hypotheses",
    "TranslationModel",
    "beam_score",
    "beam_search",
    "greedy_search",
    "output_limits",
]
