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
        "matrices": ["plot_mask", "plot_masks"],
    },
)
