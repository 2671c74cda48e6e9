"""A trained Transformer as a model of CTranslate2, a fast C++ engine that needs no TensorFlow."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from tf_transformer.errors import did_you_mean
from tf_transformer.export.manifest import write_manifest
from tf_transformer.export.versions import CTRANSLATE2, ExportError, write_version
from tf_transformer.layers.positions import sinusoidal_positions
from tf_transformer.layers.residual import LAYER_NORM_EPSILON
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

# How weights may be stored, and the type of the arrays that are handed to the library for it.
# It quantizes by itself, but for bfloat16 it would ask for torch.
_STORED_AS = {
    None: np.float32,
    "int8": np.float32,
    "int16": np.float32,
    "float16": np.float32,
    "bfloat16": tf.bfloat16.as_numpy_dtype,
}
QUANTIZATIONS = tuple(name for name in _STORED_AS if name)

# CTranslate2 reads positions from a table. Its users may ask for more than this model's
# `max_length`; past the table's end the library raises an error.
_POSITIONS = 2048


def export_ctranslate2(
    model: Transformer,
    source_tokenizer: SentencePieceTokenizer,
    target_tokenizer: SentencePieceTokenizer,
    path: str | os.PathLike[str],
    version: int | None = None,
    manifest: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quantization: str | None = None,
    max_length: int = 128,
) -> pathlib.Path:
    """Writes a model as `path/VERSION`: CTranslate2's files, both tokenizers and the manifest.

    Args:
        model: A model in any precision; its weights are read as float32.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.
        path: Folder of the versions, such as `saved_models/de_en`.
        version: A number from 1 on; None is one more than the highest there.
        manifest: What describes it, plain values, kept in `tf_transformer.json`
            beside the SHA-256 of each file, see `write_manifest`.
        overwrite: Whether a version that exists may be replaced.
        quantization: One of `QUANTIZATIONS`, or None for float32.
        max_length: The longest source in tokens; the table of positions is at least as long.

    Returns:
        The folder of the version.

    Raises:
        ExportError: The library is missing, the model is no `Transformer` or
            learned fewer positions than `max_length` needs, the quantization is
            unknown, or as `write_version`.
    """
    spec = _specification(model, source_tokenizer, target_tokenizer, quantization, max_length)

    def write(folder: pathlib.Path) -> None:
        spec.save(str(folder))
        source_tokenizer.save(folder / "source.model")
        target_tokenizer.save(folder / "target.model")
        write_manifest(folder, manifest)

    return write_version(write, CTRANSLATE2, path, version, overwrite)


def _specification(model, source_tokenizer, target_tokenizer, quantization, max_length):
    """The library's `TransformerSpec` of a model, filled, checked and quantized."""
    try:
        from ctranslate2.specs import Activation, TransformerSpec
    except ImportError:
        raise ExportError(
            "the format ctranslate2 needs its library. Install it with: pip install ctranslate2"
        ) from None
    if quantization not in _STORED_AS:
        raise ExportError(
            f"unknown quantization {quantization!r}: {did_you_mean(quantization, QUANTIZATIONS)}"
        )
    # A subclass may well compute something else with the same weights.
    if type(model) is not Transformer:
        raise ExportError(
            f"CTranslate2 can run a Transformer only; this model is a {type(model).__name__}. "
            f"Export it as a SavedModel (--format saved_model)."
        )
    config = model.config
    activations = {"relu": Activation.RELU, "gelu": Activation.GELU, "swish": Activation.SWISH}
    spec = TransformerSpec.from_config(
        (len(model.encoder.layers), len(model.decoder.layers)),
        config.num_heads,
        pre_norm=config.norm_first,
        activation=activations[config.activation],
    )
    fill = _Filler(_STORED_AS[quantization])
    fill.encoder(spec.encoder, model)
    fill.decoder(spec.decoder, model)
    # Position `max_length` is the end id of a translation at its limit.
    fill.positions(spec.encoder, model.source_embedding, max_length + 1)
    fill.positions(spec.decoder, model.target_embedding, max_length + 1)

    spec.register_source_vocabulary(_vocabulary(source_tokenizer))
    spec.register_target_vocabulary(_vocabulary(target_tokenizer))
    unk, bos, eos = target_tokenizer.subwords(
        [target_tokenizer.unk_id, target_tokenizer.bos_id, target_tokenizer.eos_id]
    )
    spec.config.unk_token = unk
    spec.config.bos_token = bos
    spec.config.eos_token = eos
    spec.config.decoder_start_token = bos
    spec.config.add_source_bos = False
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    spec.optimize(quantization=quantization)
    return spec


def _vocabulary(tokenizer):
    """The subwords of a tokenizer in the order of their ids."""
    return tokenizer.subwords(range(tokenizer.vocab_size))


class _Filler:
    """Copies the weights of Keras layers into the library's specifications.

    Keras keeps a kernel as `(inputs, outputs)`, the library as `(outputs, inputs)`.

    Args:
        dtype: NumPy type of the arrays.
    """

    def __init__(self, dtype):
        self.dtype = dtype

    def encoder(self, spec, model):
        self.embedding(spec, spec.embeddings[0], model.source_embedding)
        for layer_spec, layer in zip(spec.layer, model.encoder.layers, strict=True):
            self.self_attention(layer_spec.self_attention, layer.self_attention)
            self.norm(layer_spec.self_attention.layer_norm, layer.self_residual.norm)
            self.feed_forward(layer_spec.ffn, layer)
        if model.encoder.norm is not None:
            self.norm(spec.layer_norm, model.encoder.norm)

    def decoder(self, spec, model):
        self.embedding(spec, spec.embeddings, model.target_embedding)
        for layer_spec, layer in zip(spec.layer, model.decoder.layers, strict=True):
            self.self_attention(layer_spec.self_attention, layer.self_attention)
            self.norm(layer_spec.self_attention.layer_norm, layer.self_residual.norm)
            self.cross_attention(layer_spec.attention, layer.cross_attention)
            self.norm(layer_spec.attention.layer_norm, layer.cross_residual.norm)
            self.feed_forward(layer_spec.ffn, layer)
        if model.decoder.norm is not None:
            self.norm(spec.layer_norm, model.decoder.norm)
        if getattr(model.output_projection, "embedding", None) is not None:
            spec.projection.weight = self.array(model.target_embedding.embedding.embeddings)
        else:
            self.dense(spec.projection, model.output_projection)

    def positions(self, spec, layer, needed):
        learned = layer.position_embedding
        if learned is None:
            # Ours alternate sine and cosine; the library's own would be sines first, cosines after.
            table = sinusoidal_positions(max(_POSITIONS, needed), layer.d_model)
        elif learned.input_dim < needed:
            raise ExportError(
                f"max_length={needed - 1} needs {needed} positions, and the model learned "
                f"{learned.input_dim}. Export it with a smaller max_length."
            )
        else:
            table = learned.embeddings
        spec.position_encodings.encodings = self.array(table)

    def embedding(self, spec, embedding_spec, layer):
        embedding_spec.weight = self.array(layer.embedding.embeddings)
        spec.scale_embeddings = True  # times sqrt(d_model)

    def self_attention(self, spec, layer):
        joint, output = spec.linear
        self.dense(joint, layer.query_key_value_projection)
        self.dense(output, layer.output_projection)

    def cross_attention(self, spec, layer):
        queries, keys_values, output = spec.linear
        self.dense(queries, layer.query_projection)
        self.dense(keys_values, layer.key_value_projection)
        self.dense(output, layer.output_projection)

    def feed_forward(self, spec, layer):
        self.dense(spec.linear_0, layer.feed_forward.expand)
        self.dense(spec.linear_1, layer.feed_forward.contract)
        self.norm(spec.layer_norm, layer.feed_forward_residual.norm)

    def norm(self, spec, layer):
        spec.gamma = self.array(layer.gamma)
        spec.beta = self.array(layer.beta)

    def dense(self, spec, layer):
        spec.weight = self.array(ops.transpose(layer.kernel))
        spec.bias = self.array(layer.bias)

    def array(self, weights):
        # Always a copy, because the library quantizes in place, which must not change the model.
        return np.array(ops.convert_to_numpy(weights), np.float32).astype(self.dtype)
