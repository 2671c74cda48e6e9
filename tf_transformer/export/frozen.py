"""A Transformer in the form in which it is exported, for translating only; see `folding.py`."""

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_transformer.layers.kv_cache import Cache, append, empty_cache
from tf_transformer.layers.masks import attention_bias, causal_mask, padding_mask

# A product and its bias, a scale and a shift, or nothing.
Pair = tuple[Any, Any] | tuple[()]
Shape = list[tf.Tensor] | None  # (B, T) of rows `(B * T, D)`; None if T is 1


class _Weights(tf.Module):
    """Arrays in one variable for each shape, because a step reads few variables faster than many.

    `unstack` copies nothing if the size of an array is a multiple of 64 bytes.
    """

    def __init__(self, arrays: Any) -> None:
        super().__init__()
        flat = tf.nest.flatten(arrays)
        by_shape: dict[Any, list[int]] = {}
        for number, array in enumerate(flat):
            by_shape.setdefault((*array.shape, array.dtype), []).append(number)
        self._by_shape = [
            tf.Variable(tf.stack([flat[number] for number in numbers]), trainable=False)
            for numbers in by_shape.values()
        ]
        order = np.argsort([number for numbers in by_shape.values() for number in numbers])
        self._places = tf.nest.pack_sequence_as(arrays, order.tolist())

    def read(self) -> Any:
        """Return the arrays as tensors."""
        tensors = [tensor for stacked in self._by_shape for tensor in tf.unstack(stacked)]
        return tf.nest.map_structure(lambda place: tensors[place], self._places)


class Heads(NamedTuple):
    """The weights of the heads of a part of attention."""

    query: Any
    query_bias: Any
    # A bias of the keys would add the same to all scores of a query, which softmax removes. The
    # weights of the values sum to 1, so their bias is in that of the output.
    key: Any
    value: Any
    output: Any


class Units(NamedTuple):
    """The weights of the hidden units of a part of a feed-forward network."""

    expand: Any
    bias: Any
    contract: Any


class _Known(NamedTuple):
    """A part of attention attends to these."""

    keys: tf.Tensor  # (B, H, S, d_k)
    values: tf.Tensor  # (B, H, S, d_k)
    bias: tf.Tensor | None  # float32, added to the scores


class SubLayer(NamedTuple):
    """The weights of attention or of a feed-forward network, and of what follows it."""

    parts: tuple[Any, ...]  # of `Heads` or of `Units`; the output is the sum of theirs
    bias: Any
    norm: Pair  # of the sum after it; empty if pre-norm


class FrozenTransformer(tf.Module):
    """A `TranslationModel` with the folded weights of a `Transformer`."""

    def __init__(self, config: Any, dtype: str, arrays: Any) -> None:
        super().__init__(name="transformer")
        self.config, self._dtype = config, dtype
        self._activation = keras.activations.get(config.activation)
        self._weights = {name: _Weights(part) for name, part in arrays.items()}
        self.weights = list(self.variables)

    def call(
        self,
        inputs: Mapping[str, tf.Tensor],
        training: bool = False,
        return_attention_scores: bool = False,
    ) -> Any:
        """Return logits `(B, T, V)`, as `Transformer` does, and with scores also `cross`."""
        weights = self._read()
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        shape, all_scores = tf.unstack(tf.shape(target_ids)), []
        causal = attention_bias(causal_mask(shape[1])[:, None], "float32")
        x = self._embed(weights["embeddings"][-1], target_ids)
        for layer, known in zip(weights["decoder"], self._encode(weights, source_ids), strict=True):
            x, scores = self._decode(x, layer, lambda new: _Known(*new, causal), known, shape)
            all_scores.append(tf.concat(scores, axis=1))
        logits = self._logits(weights["output"], x)[:, : self.config.target_vocab_size]
        logits = tf.reshape(logits, [*shape, logits.shape[-1]])
        return (logits, {"cross": all_scores}) if return_attention_scores else logits

    __call__ = call

    def start_decoding(self, source_ids: tf.Tensor) -> Cache:
        """Encode the source and return the cache for the first step, see `TranslationModel`."""
        known = self._encode(self._read(), source_ids)
        num_parts, config = len(known[0]), self.config
        sizes = {"d_model": config.d_model // num_parts, "num_heads": config.num_heads // num_parts}
        parts = [types.SimpleNamespace(**sizes)] * num_parts * len(known)
        cache = empty_cache(parts, tf.shape(source_ids)[0], self._dtype)
        cache["source"]["layers"] = known
        return cache

    def decode_step(
        self, token_ids: tf.Tensor, index: tf.Tensor, cache: Cache
    ) -> tuple[tf.Tensor, Cache]:
        """Return logits of the token after `token_ids`, and the cache of the next step.

        The vocabulary has more columns than tokens, whose logits are minus infinity: a search reads
        logits in blocks.
        """
        weights, source, target = self._read(), cache["source"], {}
        x = self._embed(weights["embeddings"][-1], token_ids, index)

        def grow(new: Pair) -> _Known:
            number = len(target) // 2  # parts come in the order of the cache
            names = f"keys_{number}", f"values_{number}"
            for name, tensor in zip(names, new, strict=True):
                target[name] = append(cache["target"][name], tensor)
            return _Known(*(target[name] for name in names), None)

        for layer, known in zip(weights["decoder"], source["layers"], strict=True):
            x, _ = self._decode(x, layer, grow, known, None)
        return self._logits(weights["output"], x), {**cache, "target": target}

    def _read(self) -> dict[str, Any]:
        """Return the weights as tensors; a graph reads only those that it uses.

        A loop reads them in each step, which costs less than to pass them from step to step.
        """
        return {name: weights.read() for name, weights in self._weights.items()}

    def _embed(
        self, tables: Pair, token_ids: tf.Tensor, index: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return rows `(N, D)` of the residual stream, which is always float32."""
        tokens, positions = tables
        tokens = tf.cast(tf.gather(tokens, token_ids), tf.float32)
        if index is not None:
            return tokens + tf.gather(positions, index)
        return tf.reshape(tokens + positions[: tf.shape(token_ids)[1]], [-1, tokens.shape[-1]])

    def _encode(self, weights: dict[str, Any], source_ids: tf.Tensor) -> list[list[_Known]]:
        """Encode the source; return what cross-attention knows, by decoder layer and part."""
        shape = tf.unstack(tf.shape(source_ids))
        padding = attention_bias(padding_mask(source_ids, self.config.pad_id)[:, None], "float32")
        x = self._embed(weights["embeddings"][0], source_ids)
        for attention, feed_forward in weights["encoder"]:
            rows = self._pre(x)
            known = [_Known(*new, padding) for new in self._keys_values(attention, rows, shape)]
            x, _ = self._attend(x, attention, rows, known, shape)
            x = self._transform(x, feed_forward)
        context = self._pre(x)

        def known_of(cross: SubLayer) -> Iterator[_Known]:
            new = self._keys_values(cross, context, shape)
            for part, (keys, values) in zip(cross.parts, new, strict=True):
                # The bias of the queries adds to the scores what only the keys determine.
                queries = self._heads(part.query_bias, None)
                bias = tf.matmul(queries, keys, transpose_b=True)
                yield _Known(keys, values, tf.cast(bias, tf.float32) + padding)

        return [[*known_of(cross)] for _, cross, _ in weights["decoder"]]

    def _decode(
        self, x: tf.Tensor, layer: tuple, grow: Callable, known: list[_Known], shape: Shape
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the stream after a decoder layer, and the weights of cross-attention.

        `grow` returns the `_Known` of self-attention from the newest keys and values. `known` is
        that of the context.
        """
        own, cross, feed_forward = layer
        rows = self._pre(x)
        grown = [grow(new) for new in self._keys_values(own, rows, shape)]
        x, _ = self._attend(x, own, rows, grown, shape)
        x, scores = self._attend(x, cross, self._pre(x), known, shape, has_query_bias=True)
        return self._transform(x, feed_forward), scores

    def _keys_values(self, attention: SubLayer, rows: tf.Tensor, shape: Shape) -> list[Pair]:
        rows = tf.cast(rows, self._dtype)
        pairs = [(_matmul(rows, part.key), _matmul(rows, part.value)) for part in attention.parts]
        return [tuple(self._heads(each, shape) for each in pair) for pair in pairs]

    def _attend(
        self,
        x: tf.Tensor,
        attention: SubLayer,
        rows: tf.Tensor,
        all_known: list[_Known],
        shape: Shape,
        has_query_bias: bool = False,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the stream after a sub-layer of attention, and the weights by part.

        `has_query_bias` says that `all_known` has the bias of the queries.
        """
        # Of many rows and columns, TensorFlow's other product is twice as fast.
        product = _matmul if shape is None else tf.matmul
        outputs, all_weights = [], []
        for part, (keys, values, bias) in zip(attention.parts, all_known, strict=True):
            queries = _matmul(tf.cast(rows, part.query.dtype), part.query)
            if not has_query_bias:
                queries = tf.nn.bias_add(queries, part.query_bias)
            queries = self._heads(queries, shape)
            scores = tf.cast(product(queries, keys, transpose_b=True), tf.float32)
            weights = tf.exp(tf.nn.log_softmax(scores if bias is None else scores + bias))
            heads = product(tf.cast(weights, values.dtype), values)
            if shape is not None:
                heads = tf.transpose(heads, [0, 2, 1, 3])
            outputs.append(_matmul(tf.reshape(heads, [-1, part.output.shape[0]]), part.output))
            all_weights.append(weights)
        return self._post(x, outputs, attention), all_weights

    def _transform(self, x: tf.Tensor, feed_forward: SubLayer) -> tf.Tensor:
        rows, outputs = self._pre(x), []
        for part in feed_forward.parts:
            hidden = _matmul(tf.cast(rows, part.expand.dtype), part.expand)
            hidden = self._activation(tf.nn.bias_add(hidden, part.bias))
            outputs.append(_matmul(hidden, part.contract))
        return self._post(x, outputs, feed_forward)

    def _heads(self, rows: tf.Tensor, shape: Shape) -> tf.Tensor:
        """Return rows `(B * T, D)` as `(B, H, T, d_k)`; `shape` is (B, T), or None if T is 1."""
        width = self.config.d_model // self.config.num_heads
        heads = rows.shape[-1] // width
        if shape is None:
            return tf.reshape(rows, [-1, heads, 1, width])
        return tf.transpose(tf.reshape(rows, [*shape, heads, width]), [0, 2, 1, 3])

    def _pre(self, x: tf.Tensor) -> tf.Tensor:
        if not self.config.norm_first:
            return x
        return x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True))

    def _post(self, x: tf.Tensor, outputs: list[tf.Tensor], sub_layer: SubLayer) -> tf.Tensor:
        for output in (tf.nn.bias_add(outputs[0], sub_layer.bias), *outputs[1:]):
            x = x + tf.cast(output, tf.float32)
        if not sub_layer.norm:
            return x
        x -= tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
        scale, shift = sub_layer.norm
        return x * tf.math.rsqrt(variance + self.config.layer_norm_epsilon) * scale + shift

    def _logits(self, kernel: tuple[tf.Tensor, ...], x: tf.Tensor) -> tf.Tensor:
        # A bias added to the logits would take a pass over them, so it is the weights of a 1.
        rows = tf.pad(self._pre(x), [[0, 0], [0, 1]], constant_values=1)
        logits = [_matmul(rows, part) for part in kernel]
        return logits[0] if len(logits) == 1 else tf.concat(logits, axis=-1)


def _matmul(x: tf.Tensor, y: tf.Tensor, transpose_b: bool = False) -> tf.Tensor:
    """Multiply two tensors of the same rank.

    oneDNN replaces TensorFlow's other products by its own, which take 3 to 6 µs longer to begin
    and, of attention, twice as long in all; only in bfloat16 they are faster.
    """
    if x.dtype == tf.float32:
        return tf.raw_ops.BatchMatMulV3(x=x, y=y, adj_y=transpose_b, Tout=x.dtype)
    return tf.matmul(x, y, transpose_b=transpose_b)
