"""Translation with a trained model: one graph from text to text, and its Python face."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "alignment": ["choose_alignment"],
        "graph": ["ExportTranslator"],
        "process": ["run_in_callers_thread"],
        "saved_model": ["SavedModelError"],
        "scoring": ["AlignedPair", "Alignment", "TargetProbability", "default_alignment"],
        "translation": ["Translation"],
        "translator": ["Translator"],
    },
)
