"""Export of a Transformer to CTranslate2, a fast C++ engine that needs no TensorFlow."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import ops

from tf_transformer.export.manifest import ExportError, version_folder, write_manifest
from tf_transformer.files import atomic_folder
from tf_transformer.inference.versions import CTRANSLATE2
from tf_transformer.layers.base import quantized_parts
from tf_transformer.layers.decoder import DecoderLayer
from tf_transformer.layers.positions import sinusoidal_positions
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

# CTranslate2 reads positions from a table and raises an error past its end. Its users may ask for
# more positions than the `max_length` of this model.
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
    """Write a model as `path/VERSION`: CTranslate2's files, both tokenizers and the manifest.

    Args:
        model: A model in any precision; its weights are read as float32.
        source_tokenizer, target_tokenizer: Its tokenizers.
        path, version, manifest, overwrite: As for `export_saved_model`.
        quantization: `"int8"`, `"int16"`, `"float16"`, `"bfloat16"`, or None for float32.
        max_length: The largest number of source tokens; the table of positions is at least as long.

    Raises:
        ExportError: The library is missing, the model is not a `Transformer` or has learned
            positions for shorter sources alone, or `version_folder` raises it.

    Example:
        >>> path = tt.export_ctranslate2(model, tokenizer, tokenizer, folder / "demo")
        >>> path.name, (path / "model.bin").is_file()
        ('1', True)
    """
    spec = _specification(model, quantization, max_length)
    subwords = _vocabulary(target_tokenizer)
    spec.register_source_vocabulary(_vocabulary(source_tokenizer))
    spec.register_target_vocabulary(subwords)
    spec.config.unk_token = subwords[target_tokenizer.unk_id]
    spec.config.bos_token = subwords[target_tokenizer.bos_id]
    spec.config.eos_token = subwords[target_tokenizer.eos_id]
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.add_source_eos = source_tokenizer.eos_id != source_tokenizer.pad_id
    spec.config.layer_norm_epsilon = model.config.layer_norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    target = version_folder(CTRANSLATE2, path, version, overwrite)
    with atomic_folder(target, overwrite=overwrite) as folder:
        spec.save(str(folder))
        # The library itself has the ids of the subwords.
        (folder / "source.model").write_bytes(source_tokenizer.splitter)
        (folder / "target.model").write_bytes(target_tokenizer.splitter)
        write_manifest(folder, manifest)
    return target


def _specification(model: Transformer, quantization: str | None, max_length: int) -> Any:
    """Return the library's `TransformerSpec` with a model's weights."""
    try:
        from ctranslate2.specs import Activation, TransformerSpec
    except ImportError:
        raise ExportError(
            "the format ctranslate2 needs its library. Install it with: pip install ctranslate2"
        ) from None
    # A subclass may compute something else with the same weights.
    if type(model) is not Transformer:
        raise ExportError(
            f"CTranslate2 can only run a Transformer; this model is a "
            f"{type(model).__name__}. Export it as a SavedModel (--format saved_model)."
        )
    if quantized_parts(model):
        raise ExportError("the model is quantized already. Export it before model.quantize.")
    config = model.config
    if lack := config.lack_of_positions(max_length):
        raise ExportError(lack)
    numbers = (len(model.encoder.layers), len(model.decoder.layers)), config.num_heads
    options = {"pre_norm": config.norm_first, "activation": Activation[config.activation.upper()]}
    spec = TransformerSpec.from_config(*numbers, **options)
    # The library quantizes the weights itself, but for bfloat16 it would need torch.
    dtype = tf.bfloat16.as_numpy_dtype if quantization == "bfloat16" else np.float32
    # At position `max_length`, a translation of `max_length` tokens predicts its end token.
    fill = _Filler(dtype, max(_POSITIONS, max_length + 1))
    fill.embedding(spec.encoder, spec.encoder.embeddings[0], model.source_embedding)
    fill.stack(spec.encoder, model.encoder)
    fill.embedding(spec.decoder, spec.decoder.embeddings, model.target_embedding)
    fill.stack(spec.decoder, model.decoder)
    kernel, bias = model.output_projection.kernel_and_bias()
    spec.decoder.projection.weight = fill.array(ops.transpose(kernel))
    if bias is not None:
        spec.decoder.projection.bias = fill.array(bias)
    return spec


def _vocabulary(tokenizer: SentencePieceTokenizer) -> list[str]:
    return tokenizer.subwords(range(tokenizer.vocab_size))


class _Filler(NamedTuple):
    """Copies the weights of Keras layers into the library's specifications."""

    dtype: type
    num_positions: int

    def stack(self, spec: Any, stack: Any) -> None:
        for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
            attention, linear = layer.self_attention, layer_spec.self_attention.linear
            self.dense(linear[0], attention.query_key_value_projection)
            self.dense(linear[1], attention.output_projection)
            self.norm(layer_spec.self_attention.layer_norm, layer.self_residual.norm)
            if isinstance(layer, DecoderLayer):
                attention, linear = layer.cross_attention, layer_spec.attention.linear
                self.dense(linear[0], attention.query_projection)
                self.dense(linear[1], attention.key_value_projection)
                self.dense(linear[2], attention.output_projection)
                self.norm(layer_spec.attention.layer_norm, layer.cross_residual.norm)
            self.dense(layer_spec.ffn.linear_0, layer.feed_forward.expand)
            self.dense(layer_spec.ffn.linear_1, layer.feed_forward.contract)
            self.norm(layer_spec.ffn.layer_norm, layer.feed_forward_residual.norm)
        if stack.norm is not None:
            self.norm(spec.layer_norm, stack.norm)

    def embedding(self, spec: Any, embedding_spec: Any, layer: Any) -> None:
        embedding_spec.weight = self.array(layer.embedding.embeddings)
        spec.scale_embeddings = layer.scale  # times sqrt(d_model)
        if layer.position_embedding is None:
            # The library's own table has one layout only.
            sizes = self.num_positions, layer.d_model, layer.first_position
            table = sinusoidal_positions(*sizes, sinusoids=layer.sinusoids)
        else:
            table = layer.position_embedding.embeddings
        spec.position_encodings.encodings = self.array(table)

    def norm(self, spec: Any, layer: Any) -> None:
        spec.gamma = self.array(layer.gamma)
        spec.beta = self.array(layer.beta)

    def dense(self, spec: Any, layer: Any) -> None:
        # Keras keeps a kernel as (inputs, outputs), the library as (outputs, inputs).
        spec.weight = self.array(ops.transpose(layer.kernel))
        spec.bias = self.array(layer.bias)

    def array(self, weights: Any) -> np.ndarray:
        # Always copy, because the library quantizes in place and must not change the model.
        return np.array(ops.convert_to_numpy(weights), np.float32).astype(self.dtype)
