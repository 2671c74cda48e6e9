"""Trained models in the formats of other programs: SavedModel and CTranslate2."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "ctranslate2": ["export_ctranslate2"],
        "manifest": ["ExportError"],
        "saved_model": ["export_saved_model"],
    },
)
