"""Translation models, in pure Keras 3; one file an architecture."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "architectures": ["ARCHITECTURES", "build_model", "preset"],
        "bahdanau": ["Bahdanau"],
        "cho": ["Cho"],
        "configs": ["TransformerConfig"],
        "luong": ["Luong"],
        "recurrent_configs": ["BahdanauConfig", "ChoConfig", "LuongConfig", "SutskeverConfig"],
        "sutskever": ["Sutskever"],
        "transformer": ["Transformer"],
    },
)
