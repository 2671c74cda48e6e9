"""Transformers for translation, from parallel text to a SavedModel.

Each public name is loaded from its module when it is first used, so that
`tf-transformer --help` does not wait for TensorFlow.
"""

from typing import Any

import lazy_loader

from tf_transformer import machine

_load, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "run_config": ["RunConfig"],
        "data.token_batches": ["TokenBatches"],
        "data.marks": ["Marks"],
        "data.mixture": ["Mixture"],
        "data.phrasebook": ["phrasebook"],
        "data.tasks": ["copy_task", "reverse_task"],
        "data.text": ["Corpus", "ParallelText", "read_parallel", "read_tsv"],
        "data.text_files": ["TextFiles"],
        "data.tfds": ["load_tfds"],
        "decoding.beam": ["beam_search"],
        "decoding.greedy": ["greedy_search"],
        "decoding.result": ["Hypotheses"],
        "evaluation": ["corpus_score"],
        "export.ctranslate2": ["export_ctranslate2"],
        "export.run_export": ["export_run"],
        "export.saved_model": ["export_saved_model"],
        "inference.graph": ["ExportTranslator"],
        "inference.search": ["Search"],
        "inference.results": ["Translation"],
        "inference.translator": ["Translator"],
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
            "segment_mask",
            "permutation_mask",
            "prefix_mask",
        ],
        "layers.output": ["OutputProjection", "OutputTransform"],
        "layers.positions": ["PositionalEmbedding", "sinusoidal_positions"],
        "layers.prefix_decoder": ["PrefixLayer", "PrefixSelfAttention", "PrefixStack"],
        "layers.recurrent_attention": [
            "AdditiveAttention",
            "DotAttention",
            "GeneralAttention",
            "PredictedWindow",
        ],
        "layers.recurrent": ["Maxout"],
        "layers.residual": ["Residual"],
        "layers.restricted_attention": ["RestrictedSelfAttention"],
        "models.architectures": ["build_model", "preset"],
        "models.model_configs": [
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
        "models.language_model": [
            "CausalLanguageModel",
            "PermutationLanguageModel",
            "PrefixLanguageModel",
        ],
        "models.masked_lm": ["MaskedLanguageModel"],
        "models.seq2seq": ["Bahdanau", "Cho", "Luong", "Sutskever"],
        "models.transformer": ["Transformer"],
        "tokenizers.sentencepiece": ["SentencePieceTokenizer"],
        "tokenizers.vocabulary": ["VocabularyTokenizer"],
        "tokenizers.wordpiece": ["WordPieceTokenizer"],
        "training.translation_bleu": ["TranslationBleu"],
        "training.distribution": ["separate_seeds"],
        "training.losses": ["SmoothedCrossEntropy"],
        "training.metrics": ["Perplexity", "TokenAccuracy", "TokenLoss"],
        "training.optimizers": ["Adam", "LossScaleOptimizer"],
        "training.step": ["TrainingStep"],
        "training.schedules": ["NoamSchedule", "TrapezoidSchedule"],
    },
)


def __getattr__(name: str) -> Any:
    """Load a public name, and what it needs, without TensorFlow's start-up messages."""
    with machine.quiet():
        globals()[name] = found = _load(name)
    return found
