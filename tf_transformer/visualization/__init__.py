"""Figures, each drawn by a function from data to a matplotlib figure."""

import importlib.util

import lazy_loader

from tf_transformer.errors import InputError

if importlib.util.find_spec("matplotlib") is None:
    raise InputError("pictures need matplotlib. Install it: pip install matplotlib")

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "attention_weights": ["plot_alignment", "plot_alignments", "plot_attention", "plot_heads"],
        "beam_tree": ["BeamHypothesis", "plot_beam"],
        "curves": ["plot_bleu_by_length", "plot_history", "plot_schedules"],
        "figure": ["save_figure"],
        "matrices": ["plot_mask", "plot_masks", "plot_positions"],
    },
)
