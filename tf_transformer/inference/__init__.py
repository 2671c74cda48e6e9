"""Translation with a trained model: one graph from text to text, and its Python face."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "alignment": ["choose_alignment"],
        "graph": ["ExportTranslator", "Search"],
        "results": ["AlignedPair", "TargetProbability", "Translation"],
        "scoring": ["Alignment", "default_alignment"],
        "streams": ["translate_in_order", "num_cores"],
        "translator": ["Translator", "run_in_callers_thread"],
        "versions": ["SavedModelError"],
    },
)
