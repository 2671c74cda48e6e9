"""Greedy and beam search over a decoding step; they depend on no model."""

from tf_transformer.decoding.beam import beam_search
from tf_transformer.decoding.contract import TranslationModel, require_translation_model
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.hypotheses import Hypotheses, beam_score, output_limits

__all__ = [
    "Hypotheses",
    "TranslationModel",
    "beam_score",
    "beam_search",
    "greedy_search",
    "output_limits",
    "require_translation_model",
]
