"""The base class of the models: what Keras needs from each of them."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from tf_transformer.layers.base import Registered, Tensor, built, quantize_parts, quantized_parts
from tf_transformer.layers.output import OutputProjection
from tf_transformer.layers.positions import PositionalEmbedding, token_embedding
from tf_transformer.layers.stack import TransformerLayer
from tf_transformer.models.model_configs import ModelConfig

# An embedding that layers share, or None for one of their own.
Shared = keras.layers.Embedding | None
Inputs = Mapping[str, Tensor] | tuple[Tensor, Tensor] | list[Tensor]


class SequenceModel(Registered, keras.Model):
    """A model that predicts target tokens from source tokens, and that Keras trains and saves.

    Subclasses set `config_class`, create and build their layers in `_create_layers`, and implement
    `call` (teacher forcing). Subclasses that can decode also have `start_decoding` and
    `decode_step`. The constructor creates all weights.

    Args:
        config: an instance of `config_class`, or a dict of its fields.
        name: the model's name; None derives the name from the class.
        **kwargs: as in `keras.Model`, such as `dtype="mixed_bfloat16"`.

    Call arguments:
        inputs: dict of `source_ids` int `(B, S)` and `target_ids` int `(B, T)`, or a tuple or list
            of both; the target starts with the begin id, and both are padded with
            `config.pad_id`.

    Returns:
        logits float32 `(B, T, V)`; the logits at `t` predict the token after `target_ids[:, t]`.

    Raises:
        TypeError: `config` is of another class than `config_class`.
        ValueError: a vocabulary size or a dropout rate is None.
    """

    config_class: ClassVar[type[ModelConfig]]

    def __init__(
        self, config: ModelConfig | Mapping[str, Any], name: str | None = None, **kwargs: Any
    ) -> None:
        quantized = kwargs.pop("quantized", {})  # see `get_config`
        name = name or re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        super().__init__(name=name, **kwargs)
        self.supports_jit = False  # see `compile`
        if not isinstance(config, ModelConfig):
            config = self.config_class(**config)
        elif type(config) is not self.config_class:  # it would mean something else, silently
            wanted, given = self.config_class.__name__, type(config).__name__
            raise TypeError(f"{type(self).__name__} needs a {wanted}; received a {given}.")
        self.config = config
        rates = "dropout_rate", "attention_dropout_rate"
        for name in ("source_vocab_size", "target_vocab_size", *rates):
            if getattr(config, name, 0) is None:
                raise ValueError(f"{name} must be given to build a model.")
        self.build()
        quantize_parts(self, quantized)

    def build(self, input_shape: Any = None) -> None:
        if not self.built:
            self._create_layers()

    def _position_table(self) -> Shared:
        """Return the embedding of learned positions, not built yet; None for sinusoids."""
        sizes, name = (self.config.position_limit, self.config.d_model), "position_embedding"
        if sizes[0] is None:
            return None
        return token_embedding(*sizes, dtype=self.dtype_policy, name=name)

    def _positional_embedding(
        self, name: str, vocab_size: int, tokens: Shared, positions: Shared, rate: float = 0.0
    ) -> PositionalEmbedding:
        """Return an embedding with positions."""
        config = self.config
        embedding = PositionalEmbedding(
            vocab_size, config.d_model, rate, tokens, position_embedding=positions,
            # The layout of sinusoids does not matter if positions are learned.
            sinusoids="sinusoidal" if config.positions == "learned" else config.positions,
            scale=config.scale_embeddings, first_position=config.first_position,
            dtype=self.dtype_policy, name=f"{name}_embedding",
        )  # fmt: skip
        return built(embedding, (None, None))

    def _transformer_layers(self, kind: type, number: int) -> list[TransformerLayer]:
        """Return the layers of a stack, not built yet."""
        names = ("d_model", "num_heads", "d_ff", "dropout_rate", "attention_dropout_rate")
        others = ("norm_first", "activation", "layer_norm_epsilon")
        options = {name: getattr(self.config, name) for name in (*names, *others)}
        options["dtype"] = self.dtype_policy
        return [kind(**options, name=f"layer_{index}") for index in range(number)]

    def _output_projection(
        self, embedding: Shared, transform: keras.Layer | None = None
    ) -> OutputProjection:
        """Return the projection to the target's vocabulary, tied to `embedding` if it is given."""
        tied_bias = getattr(self.config, "output_bias", False)
        arguments = self.config.target_vocab_size, embedding, tied_bias, transform
        projection = OutputProjection(*arguments, dtype="float32", name="output_projection")
        return built(projection, (None, None, self.config.d_model))

    def num_predicted(self, labels: Tensor) -> Tensor:
        """Return how many of the labels `(B, T)` training predicts, float32 scalar."""
        return ops.sum(ops.cast(ops.not_equal(labels, self.config.pad_id), "float32"))

    def labels_predicted(self, labels: Tensor, output: Tensor) -> Tensor:
        """Return the labels `(B, T)` with padding where training predicted none."""
        return labels

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configure training as `keras.Model.compile` does, with XLA only if `jit_compile=True`.

        Raises:
            ValueError: The `pad_id` of the loss or of a metric differs from the model's.
        """
        for part in keras.tree.flatten((args, kwargs)):
            if getattr(part, "pad_id", self.config.pad_id) != self.config.pad_id:
                raise ValueError(
                    f"compile received a {type(part).__name__} with pad_id={part.pad_id}, but the "
                    f"model has pad_id={self.config.pad_id}; use one padding id for both."
                )
        # With "auto" XLA would compile anew for every batch shape.
        self.supports_jit = kwargs.get("jit_compile") is True
        super().compile(*args, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Build the optimizer under a distribution strategy; everything else is already built.

        Keras would average the first batch over the replicas before building, which fails if the
        batch does not divide evenly (Keras 3.15.1).
        """
        if self._distribute_strategy and self.optimizer and not self.optimizer.built:
            with self._distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)

    def export(self, filepath: str, *args: Any, **kwargs: Any) -> None:
        """Export as `keras.Model.export` does; the default signature takes a dict of token ids."""
        ids = keras.InputSpec(shape=(None, None), dtype="int32")
        kwargs.setdefault("input_signature", [{"source_ids": ids, "target_ids": ids}])
        super().export(filepath, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        parts = quantized_parts(self)
        return {**super().get_config(), "config": self.config.to_dict(), "quantized": parts}


def packed_sides(inputs: Inputs) -> list[list[Tensor]] | None:
    """Return ids, segments and positions of source and target, each int `(B, L)`, if packed."""
    if not (isinstance(inputs, Mapping) and "source_segments" in inputs):
        return None
    names = "ids", "segments", "positions"
    return [[inputs[f"{side}_{name}"] for name in names] for side in ("source", "target")]


def split_inputs(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return source ids and target ids from the inputs of a model that takes no packed rows."""
    if not isinstance(inputs, Mapping):
        source_ids, target_ids = inputs
        return source_ids, target_ids
    if packed_sides(inputs):  # the model would mix up their pairs, silently
        raise ValueError("this model takes no packed rows; make batches without row_length.")
    return inputs["source_ids"], inputs["target_ids"]
