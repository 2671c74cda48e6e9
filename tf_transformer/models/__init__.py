"""Translation models, in pure Keras 3; one file an architecture."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "architectures": ["ARCHITECTURES", "build_model", "preset"],
        "configs": ["TransformerConfig"],
        "transformer": ["Transformer"],
    },
)
