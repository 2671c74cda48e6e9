"""Translation models, in pure Keras 3."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "architectures": ["ARCHITECTURES", "build_model", "preset"],
        "configs": [
            "BahdanauConfig",
            "CausalLanguageModelConfig",
            "ChoConfig",
            "LuongConfig",
            "MaskedLanguageModelConfig",
            "PermutationLanguageModelConfig",
            "PrefixLanguageModelConfig",
            "SutskeverConfig",
            "TransformerConfig",
        ],
        "language_model": [
            "CausalLanguageModel",
            "PermutationLanguageModel",
            "PrefixLanguageModel",
        ],
        "masked_lm": ["MaskedLanguageModel"],
        "seq2seq": ["Bahdanau", "Cho", "Luong", "Sutskever"],
        "transformer": ["Transformer"],
    },
)
