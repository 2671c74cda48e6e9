"""Figures, each a function from data to a matplotlib figure."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "attention": ["plot_alignment", "plot_alignments", "plot_attention", "plot_heads"],
        "beam": ["BeamHypothesis", "plot_beam"],
        "bleu": ["plot_bleu_by_length"],
        "figures": ["PlotError", "save_figure"],
        "history": ["plot_history", "save_history"],
        "masks": ["plot_mask", "plot_masks"],
        "positions": ["plot_position_similarity", "plot_positions"],
        "schedules": ["plot_schedules"],
        "smoothing": ["plot_smoothed_loss", "plot_target_distribution"],
    },
)
