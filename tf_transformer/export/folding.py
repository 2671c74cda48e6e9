"""The weights of a Transformer, folded for translating.

A layer norm divides a centred vector by its standard deviation, then scales and shifts it. Scale
and shift go into the product after the norm. Centring goes into the products that write the
residual stream, which is linear. The norm becomes `x / sqrt(|x|^2 + D * epsilon)`. A stream that
is always centred has one coordinate less than it is wide: in another basis the first coordinate is
0 for every vector. There the constant `sqrt(D * epsilon)` is stored, so that the norm is `x / |x|`.
(This basis is in Ashkboos et al. 2024, SliceGPT, section 3.) A post-norm model has other norms,
which are kept.
"""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_transformer.decoding.top_k import BLOCK_SIZE
from tf_transformer.export.frozen import FrozenTransformer, Heads, Pair, SubLayer, Units
from tf_transformer.layers.base import quantized_parts
from tf_transformer.models.model_configs import TransformerConfig
from tf_transformer.models.transformer import Transformer

# From this width on, a sub-layer has two parts: half of the heads, or half of the hidden units. A
# session with two threads between operations runs them at the same time. A product of one row is
# bound by memory, and TensorFlow does not divide it among threads.
_WIDTH_OF_PARTS = 512
Array = np.ndarray


def freeze(model: Any, max_length: int, dtype: str | None = None) -> Any:
    """Return a `FrozenTransformer` whose logits are those of a Transformer, up to rounding.

    Any other model, and a quantized Transformer, is returned as it is.

    Args:
        model: A `TranslationModel`; later changes of its weights are not seen.
        max_length: The longest sequence of source or target tokens, without the begin token.
        dtype: The dtype of all products but that of the logits, and of their weights; None means
            that of the model.
    """
    if type(model) is not Transformer or quantized_parts(model):
        return model
    config = model.config
    fold = _Fold(config)
    is_wide = config.d_model >= _WIDTH_OF_PARTS
    num_parts = 2 if is_wide and not (config.num_heads % 2 or config.d_ff % 2) else 1

    def by_part(*columns: Array, rows: Array) -> Iterator[tuple[Array, ...]]:
        arrays = [np.split(array, num_parts, axis=-1) for array in columns]
        return zip(*arrays, np.split(rows, num_parts), strict=True)

    def attention(layer: Any, residual: Any, source_norm: Any = None) -> SubLayer:
        if hasattr(layer, "query_key_value_projection"):
            parts = _split(layer.query_key_value_projection, 3)
            query, key, value = (fold.read(residual.norm, *part) for part in parts)
        else:
            query = fold.read(residual.norm, *_dense(layer.query_projection))
            parts = _split(layer.key_value_projection, 2)
            key, value = (fold.read(source_norm, *part) for part in parts)
        kernel, bias = _dense(layer.output_projection)
        output, bias = fold.write(kernel, bias + value[1] @ kernel)
        query = [weights / math.sqrt(config.d_model // config.num_heads) for weights in query]
        parts = by_part(*query, key[0], value[0], rows=output)
        heads = tuple(Heads(*part) for part in parts)
        return SubLayer(heads, bias, fold.kept(residual.norm))

    def feed_forward(layer: Any) -> SubLayer:
        norm = layer.feed_forward_residual.norm
        expand = fold.read(norm, *_dense(layer.feed_forward.expand))
        contract, bias = fold.write(*_dense(layer.feed_forward.contract))
        units = tuple(Units(*part) for part in by_part(*expand, rows=contract))
        return SubLayer(units, bias, fold.kept(norm))

    def tables(layer: Any) -> tuple[Array, tf.Tensor]:
        tokens = _array(layer._embed(np.arange(layer.vocab_size)))
        # The begin token and `max_length` tokens after it.
        positions = _array(layer._encode(np.arange(max_length + 1)))
        return _pad_rows(fold.write(tokens)[0]), _float32(fold.write(positions)[0] + fold.floor)

    sides = [model.source_embedding, model.target_embedding]
    if config.tie_embeddings and config.position_limit is None:
        del sides[1]  # they are equal
    kernel, bias = model.output_projection.kernel_and_bias()
    bias = np.zeros(config.target_vocab_size) if bias is None else _array(bias)
    encoder, decoder = model.encoder, model.decoder
    kernel, bias = fold.read(decoder.norm, _array(kernel), bias)
    output = np.vstack([_pad_rows(kernel.T).T, _pad_rows(bias, -np.inf)])
    arrays = {
        "embeddings": [tables(side) for side in sides],
        "encoder": [
            (attention(layer.self_attention, layer.self_residual), feed_forward(layer))
            for layer in encoder.layers
        ],
        "decoder": [
            (
                attention(layer.self_attention, layer.self_residual),
                attention(layer.cross_attention, layer.cross_residual, encoder.norm),
                feed_forward(layer),
            )
            for layer in decoder.layers
        ],
        # Logits are always float32: in bfloat16 many would be equal.
        "output": tuple(map(_float32, np.split(output, num_parts, axis=1))),
    }
    dtype = dtype or model.compute_dtype
    arrays = tf.nest.map_structure(
        lambda a: a if tf.is_tensor(a) else tf.cast(_float32(a), dtype), arrays
    )
    return FrozenTransformer(config, dtype, arrays)


class _Fold:
    """The arithmetic of folding, in float64."""

    def __init__(self, config: TransformerConfig) -> None:
        self._norm_first, self._width = config.norm_first, config.d_model
        ones = np.ones(config.d_model) / math.sqrt(config.d_model)
        first = np.eye(config.d_model)[0]
        self._basis, self.floor = np.eye(config.d_model), 0.0
        if self._norm_first:
            # A reflection that maps the mean to the first coordinate, which centring makes 0.
            mirror = (ones - first) / np.linalg.norm(ones - first)
            self._basis -= 2 * np.outer(mirror, mirror)
            self._basis[:, 0] = 0
            self.floor = math.sqrt(config.d_model * config.layer_norm_epsilon) * first

    def write(self, kernel: Array, bias: Any = 0.0) -> tuple[Array, Any]:
        """Return the product and the bias of what is added to the residual stream."""
        return kernel @ self._basis, bias @ self._basis if np.ndim(bias) else bias

    def read(self, norm: Any, kernel: Array, bias: Array) -> tuple[Array, Array]:
        """Return the product and the bias that read the stream through a norm."""
        if not self._norm_first:
            return kernel, bias
        scale, shift = _array(norm.gamma), _array(norm.beta)
        root = math.sqrt(self._width)
        return root * self._basis.T @ (scale[:, None] * kernel), shift @ kernel + bias

    def kept(self, norm: Any) -> Pair:
        """Return scale and shift of a norm that cannot be folded, otherwise nothing."""
        return () if self._norm_first else (_float32(norm.gamma), _float32(norm.beta))


def _pad_rows(array: Array, value: float = 0.0) -> Array:
    """Return a row for each token and as many more as fill the last block of a search."""
    padding = [(0, -len(array) % BLOCK_SIZE)] + [(0, 0)] * (array.ndim - 1)
    return np.pad(array, padding, constant_values=value)


def _array(weights: Any) -> Array:
    return keras.ops.convert_to_numpy(weights).astype("float64")


def _float32(weights: Any) -> tf.Tensor:
    return tf.constant(_array(weights), tf.float32)


def _dense(layer: Any) -> tuple[Array, Array]:
    return _array(layer.kernel), _array(layer.bias)


def _split(layer: Any, parts: int) -> Iterator[tuple[Array, Array]]:
    """Return kernel and bias of each part of a projection."""
    kernels, biases = (np.split(weights, parts, axis=-1) for weights in _dense(layer))
    return zip(kernels, biases, strict=True)
