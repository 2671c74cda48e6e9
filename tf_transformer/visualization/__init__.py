"""Figures, each a function from data to a matplotlib figure."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submod_attrs={"history": ["plot_history", "save_history"]}
)
