"""tf_transformer: from parallel text to a SavedModel that translates.

The public names, each loaded from its home when it is first used, so that
`tf-transformer --help` need not wait for TensorFlow.
"""

import importlib

_HOMES = {
    "config": ["TransformerConfig", "RunConfig"],
    "layers.masks": [
        "causal_mask",
        "local_mask",
        "padding_mask",
        "permutation_mask",
        "prefix_mask",
    ],
    "layers.positions": ["PositionalEmbedding", "sinusoidal_positions"],
    "layers.attention": [
        "CausalSelfAttention",
        "CrossAttention",
        "GlobalSelfAttention",
        "MultiHeadAttention",
    ],
    "layers.feed_forward": ["FeedForward"],
    "layers.output_projection": ["OutputProjection"],
    "layers.encoder": ["Encoder", "EncoderLayer"],
    "layers.decoder": ["Decoder", "DecoderLayer"],
    "models.transformer": ["Transformer"],
    "models.presets": ["preset"],
    "training.losses": ["SmoothedCrossEntropy"],
    "training.metrics": ["Perplexity", "TokenAccuracy", "TokenLoss"],
    "training.schedules": ["NoamSchedule"],
    "training.accumulation": ["GradientAccumulation"],
    "training.adam": ["Adam", "UseAverages", "averaged_weights"],
    "training.callbacks": ["TranslationBleu"],
    "training.distribution": ["separate_seeds"],
    "training.endings": ["Patience"],
    "training.logs": ["TensorBoardLog"],
    "tokenizers.sentencepiece": ["SentencePieceTokenizer"],
    "data.parallel": ["Corpus", "ParallelText", "load_tfds", "read_parallel", "read_tsv"],
    "data.phrasebook": ["phrasebook"],
    "data.synthetic": ["copy_task", "reverse_task"],
    "data.batching": ["TokenBatches"],
    "data.text_files": ["TextFiles"],
    "decoding.beam": ["beam_search"],
    "decoding.greedy": ["greedy_search"],
    "evaluation": ["score"],
    "export.translator": ["Translation", "Translator"],
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__():
    return __all__
