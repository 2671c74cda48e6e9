"""tf_transformer: from parallel text to a SavedModel that translates.

The public names, each loaded from its module when it is first used, so that
`tf-transformer --help` need not wait for TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "config": ["RunConfig"],
        "data.batching": ["TokenBatches"],
        "data.parallel": ["Corpus", "ParallelText", "load_tfds", "read_parallel", "read_tsv"],
        "data.phrasebook": ["phrasebook"],
        "data.synthetic": ["copy_task", "reverse_task"],
        "data.text_files": ["TextFiles"],
        "decoding": ["Hypotheses", "beam_search", "greedy_search"],
        "evaluation": ["score"],
        "export": ["export_ctranslate2", "export_saved_model"],
        "inference": ["ExportTranslator", "Translation", "Translator"],
        "layers.attention": [
            "CausalSelfAttention",
            "CrossAttention",
            "GlobalSelfAttention",
            "MultiHeadAttention",
        ],
        "layers.decoder": ["Decoder", "DecoderLayer"],
        "layers.encoder": ["Encoder", "EncoderLayer"],
        "layers.feed_forward": ["FeedForward"],
        "layers.masks": [
            "causal_mask",
            "local_mask",
            "padding_mask",
            "permutation_mask",
            "prefix_mask",
        ],
        "layers.output_projection": ["OutputProjection"],
        "layers.positions": ["PositionalEmbedding", "sinusoidal_positions"],
        "layers.prefix_stack": ["PrefixLayer", "PrefixSelfAttention", "PrefixStack"],
        "models": [
            "CausalLanguageModel",
            "CausalLanguageModelConfig",
            "MaskedLanguageModel",
            "MaskedLanguageModelConfig",
            "PermutationLanguageModel",
            "PermutationLanguageModelConfig",
            "PrefixLanguageModel",
            "PrefixLanguageModelConfig",
            "Transformer",
            "TransformerConfig",
            "preset",
        ],
        "tokenizers.sentencepiece": ["SentencePieceTokenizer"],
        "training": [
            "Adam",
            "GradientAccumulation",
            "NoamSchedule",
            "Perplexity",
            "SmoothedCrossEntropy",
            "TokenAccuracy",
            "TokenLoss",
            "TrapezoidSchedule",
            "TranslationBleu",
            "UseAverages",
            "averaged_weights",
            "separate_seeds",
        ],
    },
)
