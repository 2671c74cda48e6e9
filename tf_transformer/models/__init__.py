"""Translation models, in pure Keras 3; one file an architecture."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "architectures": ["ARCHITECTURES", "build_model", "preset"],
        "bahdanau": ["Bahdanau"],
        "cho": ["Cho"],
        "luong": ["Luong"],
        "recurrent_configs": ["BahdanauConfig", "ChoConfig", "LuongConfig", "SutskeverConfig"],
        "sutskever": ["Sutskever"],
        "causal_lm": ["CausalLanguageModel"],
        "configs": ["TransformerConfig"],
        "language_model_configs": [
            "CausalLanguageModelConfig",
            "MaskedLanguageModelConfig",
            "PermutationLanguageModelConfig",
            "PrefixLanguageModelConfig",
        ],
        "masked_lm": ["MaskedLanguageModel"],
        "permutation_lm": ["PermutationLanguageModel"],
        "prefix_lm": ["PrefixLanguageModel"],
        "transformer": ["Transformer"],
    },
)
