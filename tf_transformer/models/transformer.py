"""The Transformer: a sequence-to-sequence model based on attention alone."""

from collections.abc import Mapping
from typing import Any, Self

import keras
from keras import ops

from tf_transformer.layers.base import DType, Tensor
from tf_transformer.layers.decoder import Decoder, DecoderLayer
from tf_transformer.layers.encoder import Encoder, EncoderLayer
from tf_transformer.layers.masks import padding_mask
from tf_transformer.layers.output_projection import OutputProjection
from tf_transformer.layers.positions import PositionalEmbedding, token_embedding
from tf_transformer.layers.token_statistics import token_statistics
from tf_transformer.models.configs import TransformerConfig

Cache = dict[str, dict[str, Tensor]]


@keras.saving.register_keras_serializable(package="tf_transformer")
class Transformer(keras.Model):
    """The encoder-decoder Transformer (Vaswani et al. 2017).

    All weights exist after the constructor. Like every translation model here it has three entry
    points: a call (teacher forcing), `start_decoding` and `decode_step`.

    `model.quantize("int8")` quantizes all projections and the embeddings; an output projection
    with weights of its own (`tie_embeddings=False`) stays as it is.

    Args:
        config: `TransformerConfig`, or a dict of its fields.
        name: the model's name.
        trainable: whether the weights are trained.
        dtype: dtype policy, such as `"mixed_bfloat16"`; None for the global one.

    Call arguments:
        inputs: dict of `source_ids` int `(B, S)` and `target_ids` int `(B, T)`, or a tuple or list
            of both; the target starts with the begin id, and both are padded with
            `config.pad_id`. A dict may have `labels` int `(B, T)` too: the call then returns their
            statistics instead of logits, of which only 16 MiB are in memory at a time.
        training: whether dropout is applied.
        return_attention_scores: whether to return the attention weights too.

    Returns:
        logits float32 `(B, T, V)`: those at `t` predict the token after `target_ids[:, t]`; or,
        with `labels`, their statistics float32 `(B, T, 3)`, see `layers.token_statistics`. With
        `return_attention_scores` also a dict with a list of each layer's weights: `encoder`
        `(B, H, S, S)`, `decoder` `(B, H, T, T)` and `cross` `(B, H, T, S)`.

    Raises:
        ConfigError: `config` lacks the sizes of the vocabularies.
        ValueError: `inputs` is no such dict, tuple or list.
    """

    def __init__(
        self,
        config: TransformerConfig | Mapping[str, Any],
        *,
        name: str = "transformer",
        trainable: bool = True,
        dtype: DType = None,
    ) -> None:
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        self.supports_jit = False  # see `compile`
        if not isinstance(config, TransformerConfig):
            config = TransformerConfig(**config)
        config.require_complete()
        self.config = config
        policy = self.dtype_policy
        shared = None
        if config.tie_embeddings:
            shared = token_embedding(config.target_vocab_size, config.d_model, dtype=policy)

        def embedding(side: str, vocab_size: int) -> PositionalEmbedding:
            return PositionalEmbedding(
                vocab_size,
                config.d_model,
                config.dropout_rate,
                shared,
                dtype=policy,
                name=f"{side}_embedding",
            )

        def layers(kind: type) -> list:
            return [
                kind(
                    config.d_model,
                    config.num_heads,
                    config.d_ff,
                    config.dropout_rate,
                    config.attention_dropout_rate,
                    config.norm_first,
                    dtype=policy,
                    name=f"layer_{index}",
                )
                for index in range(config.num_layers)
            ]

        self.source_embedding = embedding("source", config.source_vocab_size)
        self.target_embedding = embedding("target", config.target_vocab_size)
        self.encoder = Encoder(layers(EncoderLayer), dtype=policy, name="encoder")
        self.decoder = Decoder(layers(DecoderLayer), dtype=policy, name="decoder")
        self.output_projection = OutputProjection(
            config.target_vocab_size,
            config.pad_id,
            shared,
            dtype="float32",
            name="output_projection",
        )
        self.build()

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        hidden_shape = (None, None, self.config.d_model)
        self.source_embedding.build((None, None))
        self.target_embedding.build((None, None))
        self.encoder.build(hidden_shape)
        self.decoder.build(hidden_shape, hidden_shape)
        self.output_projection.build(hidden_shape)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Does nothing, because all is built.

        Keras would average a batch over the replicas of a strategy first, which fails where the
        first batch does not divide evenly (Keras 3.15.1).
        """

    def call(
        self,
        inputs: Mapping[str, Tensor] | tuple[Tensor, Tensor] | list[Tensor],
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, dict[str, list[Tensor]]]:
        source_ids, target_ids, labels = _split_inputs(inputs)
        context, context_mask, encoder_weights = self._encode(source_ids, training)
        # Real target tokens come first, so the causal mask hides the padding from all of them.
        hidden, decoder_weights, cross_weights = self.decoder(
            self.target_embedding(target_ids, training=training),
            context,
            cross_attention_mask=context_mask,
            training=training,
            return_attention_scores=True,
        )
        if labels is None:
            output = self._logits(hidden)
        elif isinstance(self.output_projection, OutputProjection):
            output = self.output_projection(hidden, labels)
        else:
            output = token_statistics(labels, self._logits(hidden), self.config.pad_id)
        if not return_attention_scores:
            return output
        return output, {
            "encoder": encoder_weights,
            "decoder": decoder_weights,
            "cross": cross_weights,
        }

    def start_decoding(
        self,
        source_ids: Tensor,
        num_steps: int | Tensor | None = None,
        beam_size: int | Tensor | None = None,
    ) -> Cache:
        """Encodes the source and returns the cache for the first step.

        Args:
            source_ids: int tensor `(B, S)`.
            num_steps: int or int scalar tensor, the maximum number of steps, for a KV cache of
                fixed size, which XLA needs; None for one that grows by a position each step.
            beam_size: int or int scalar tensor, K hypotheses for each sentence, in consecutive
                rows (N = B * K); None for one row for each sentence (N = B).

        Returns:
            dict of flat dicts of tensors: `"constants"` and `"source"` `(B, …)`, which never
            change; `"history"` `(B, …)`, which each step extends and which is never re-ordered;
            `"target"` `(N, …)`, which is re-ordered with the hypotheses.
        """
        context, context_mask, _ = self._encode(source_ids, training=False)
        cache = self.decoder.start_decoding(context, context_mask, num_steps, beam_size)
        head = self.output_projection
        if num_steps is None and isinstance(head, OutputProjection) and head.embedding is not None:
            # Transposed once instead of in each step; XLA does that by itself.
            cache["constants"]["output_kernel"], _ = head.kernel_and_bias()
        return cache

    def decode_step(
        self, token_ids: Tensor, index: int | Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Predicts the token after `token_ids`.

        Args:
            token_ids: int tensor `(N,)`, the token at position `index` of each row.
            index: int or int scalar tensor, counted from 0 (the begin token).
            cache: as returned by `start_decoding` or the previous step.

        Returns:
            logits float32 `(N, V)`, and the cache for the next step.
        """
        x = self.target_embedding.decode_step(token_ids, index)
        hidden, cache = self.decoder.decode_step(x, index, cache)
        kernel = cache["constants"].get("output_kernel")
        if kernel is None:
            return self._logits(hidden), cache
        return ops.matmul(ops.cast(hidden, "float32"), kernel), cache

    def __setattr__(self, name: str, value: Any) -> None:
        replaced = vars(self).get(name)
        if not (getattr(self, "built", False) and isinstance(replaced, keras.Layer)):
            return super().__setattr__(name, value)
        # Keras allows no new layer once a model is built; this one takes the place of another.
        self._tracker.unlock()
        self._tracker.untrack(replaced)
        super().__setattr__(name, value)
        self._tracker.lock()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.compile`, but XLA compiles only with `jit_compile=True`, not by default.

        Raises:
            ValueError: The loss or a metric has another `pad_id` than the model.
        """
        self._check_pad_ids("compile", *keras.tree.flatten((args, kwargs)))
        # With "auto" XLA would compile anew for every batch shape.
        self.supports_jit = kwargs.get("jit_compile") is True
        super().compile(*args, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.fit`.

        Raises:
            ValueError: The data are the dataset of `TokenBatches` with another padding id than the
                model's, or are validation data of that kind.
        """
        self._check_pad_ids("fit", x, kwargs.get("validation_data"))
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.evaluate`, with the errors of `fit`."""
        self._check_pad_ids("evaluate", x)
        return super().evaluate(x, *args, **kwargs)

    def _check_pad_ids(self, method: str, *parts: Any) -> None:
        for part in parts:
            pad_id = getattr(part, "pad_id", self.config.pad_id)
            if pad_id != self.config.pad_id:
                raise ValueError(
                    f"{method} received a {type(part).__name__} with pad_id={pad_id}, but the "
                    f"model has pad_id={self.config.pad_id}; use one padding id for both."
                )

    def export(self, filepath: str, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.export`; the default signature takes the dict of token ids."""
        names = ("source_ids", "target_ids")
        kwargs.setdefault(
            "input_signature",
            [{name: keras.InputSpec(shape=(None, None), dtype="int32") for name in names}],
        )
        super().export(filepath, *args, **kwargs)

    def _logits(self, hidden: Tensor) -> Tensor:
        return ops.cast(self.output_projection(hidden), "float32")

    def _encode(self, source_ids: Tensor, training: bool | None) -> tuple[Tensor, Tensor, list]:
        mask = padding_mask(source_ids, self.config.pad_id)
        context, weights = self.encoder(
            self.source_embedding(source_ids, training=training),
            attention_mask=mask,
            training=training,
            return_attention_scores=True,
        )
        return context, mask, weights

    def get_config(self) -> dict[str, Any]:
        policy = self.dtype_policy
        quantized = {
            layer.path: layer.dtype_policy
            for layer in self._flatten_layers(include_self=False)
            if layer.quantization_mode is not None
        }
        if quantized:
            policy = keras.dtype_policies.DTypePolicyMap(policy, quantized)
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.saving.serialize_keras_object(policy),
            "config": self.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        policy = keras.dtype_policies.get(config["dtype"])
        if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            return cls(**config)
        model = cls(**{**config, "dtype": policy.default_policy})
        for layer in model._flatten_layers(include_self=False):
            if layer.path in policy:  # quantizes the layer
                layer.dtype_policy = policy[layer.path]
        return model


def _split_inputs(inputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns source ids, target ids, and labels or None."""
    names, received = ("source_ids", "target_ids"), type(inputs).__name__
    if isinstance(inputs, tuple | list):
        if len(inputs) == len(names):
            return (*inputs, None)
        received = f"{len(inputs)} inputs"
    elif isinstance(inputs, Mapping):
        if set(names) <= set(inputs) <= {*names, "labels"}:
            return inputs["source_ids"], inputs["target_ids"], inputs.get("labels")
        received = f"the keys {sorted(inputs)}"
    raise ValueError(
        "Transformer needs a dict with the keys source_ids, target_ids and optionally labels, or "
        f"the tuple (source_ids, target_ids); received {received}."
    )
