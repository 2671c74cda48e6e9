"""Presets: a table of sizes."""

import dataclasses

from tf_transformer.config import ConfigError, TransformerConfig, nearest

# name: num_layers, d_model, d_ff, num_heads
PRESETS = {
    "tiny": (4, 128, 256, 4),  # Wu et al. 2021, for small corpora
    "small": (4, 128, 512, 8),  # the size of TensorFlow's tutorial
    "base": (6, 512, 2048, 8),  # Vaswani et al. 2017
    "big": (6, 1024, 4096, 16),  # Vaswani et al. 2017
}


def preset(name, source_vocab_size, target_vocab_size):
    """The configuration of a preset; change single fields with `dataclasses.replace`.

    Args:
        name: `"tiny"`, `"small"`, `"base"` or `"big"`.
        source_vocab_size, target_vocab_size: int. Where they are equal, as with a joint tokenizer,
            the embeddings are tied.

    Returns:
        `TransformerConfig`.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}: {nearest(name, PRESETS)}")
    num_layers, d_model, d_ff, num_heads = PRESETS[name]
    return TransformerConfig(
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        tie_embeddings=source_vocab_size == target_vocab_size,
    )


def transformer_config(model, source_vocab_size, target_vocab_size, joint, pad_id):
    """The configuration of a run's Transformer: its preset and what differs from it.

    Args:
        model: `ModelConfig`.
        source_vocab_size, target_vocab_size, pad_id: int, as the tokenizers have them.
        joint: bool, whether both sides share one tokenizer.

    Returns:
        `TransformerConfig`.
    """
    config = preset(model.preset, source_vocab_size, target_vocab_size)
    changes = {
        name: getattr(model, name) for name in model.SIZES if getattr(model, name) is not None
    }
    return dataclasses.replace(
        config,
        dropout_rate=model.dropout_rate,
        attention_dropout_rate=model.attention_dropout_rate,
        norm_first=model.norm_first,
        tie_embeddings=joint if model.tie_embeddings is None else model.tie_embeddings,
        pad_id=pad_id,
        **changes,
    )
