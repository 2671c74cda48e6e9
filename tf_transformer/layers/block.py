"""The base classes of encoder and decoder, and of their layers."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import keras

from tf_transformer.layers.attention import GlobalSelfAttention, MultiHeadAttention
from tf_transformer.layers.base import DType, HiddenStateLayer, Shape, Tensor, ensure_built
from tf_transformer.layers.feed_forward import FeedForward
from tf_transformer.layers.residual import Residual, layer_norm
from tf_transformer.layers.restricted_attention import RestrictedSelfAttention


class TransformerLayer(HiddenStateLayer):
    """Base class of `EncoderLayer` and `DecoderLayer`, which create their sub-layers.

    Args:
        d_model: D.
        num_heads: H.
        d_ff: width of the feed-forward network.
        dropout_rate: dropout of each sub-layer's output, in [0, 1).
        attention_dropout_rate: dropout of the attention weights, in [0, 1).
        norm_first: whether each sub-layer's input is normalised, see `Residual`.
        activation: that of the feed-forward network, see `FeedForward`.
        attention_radius: how far a position attends to positions of its own sequence, see
            `RestrictedSelfAttention`; None for any distance.
        name, trainable, dtype: as in `keras.layers.Layer`.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        norm_first: bool = True,
        activation: Callable[[Tensor], Tensor] | str = "relu",
        attention_radius: int | None = None,
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DType = None,
    ) -> None:
        super().__init__(d_model, name=name, trainable=trainable, dtype=dtype)
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.norm_first = norm_first
        self.activation = activation
        self.attention_radius = attention_radius
        self._create_sublayers()

    def _create_sublayers(self) -> None:
        raise NotImplementedError

    def _attention(self, layer_class: type[MultiHeadAttention], name: str) -> MultiHeadAttention:
        return layer_class(
            self.num_heads,
            self.d_model,
            self.attention_dropout_rate,
            dtype=self.dtype_policy,
            name=name,
        )

    def _self_attention(
        self,
        unrestricted: type[GlobalSelfAttention],
        restricted: type[RestrictedSelfAttention],
    ) -> GlobalSelfAttention:
        """An attention of one of two classes, the second where `attention_radius` is given."""
        if self.attention_radius is None:
            return self._attention(unrestricted, "self_attention")
        return restricted(
            self.num_heads,
            self.d_model,
            self.attention_radius,
            self.attention_dropout_rate,
            dtype=self.dtype_policy,
            name="self_attention",
        )

    def _feed_forward(self, name: str) -> FeedForward:
        return FeedForward(
            self.d_model, self.d_ff, self.activation, dtype=self.dtype_policy, name=name
        )

    def _residual(self, name: str) -> Residual:
        return Residual(
            self.d_model, self.dropout_rate, self.norm_first, dtype=self.dtype_policy, name=name
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "norm_first": self.norm_first,
            "activation": keras.activations.serialize(keras.activations.get(self.activation)),
            "attention_radius": self.attention_radius,
        }


class LayerStack(HiddenStateLayer):
    """Base class of `Encoder` and `Decoder`: layers, and a final norm where they are norm-first.

    Args:
        layers: the layers, built or not, in the order of their application; at least one, all with
            the same `d_model` and `norm_first`.
        name, trainable, dtype: as in `keras.layers.Layer`; the dtype is that of the final norm.

    Raises:
        ValueError: `layers` is not such a list.
    """

    layer_class: ClassVar[type[TransformerLayer]] = TransformerLayer

    def __init__(
        self,
        layers: Sequence[TransformerLayer],
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DType = None,
    ) -> None:
        wanted, kind = self.layer_class, type(self).__name__
        if (
            not isinstance(layers, Sequence)
            or not layers
            or not all(isinstance(layer, wanted) for layer in layers)
        ):
            raise ValueError(
                f"{kind} needs a list of at least one {wanted.__name__}; received layers={layers}."
            )
        for attribute in ("d_model", "norm_first"):
            values = [getattr(layer, attribute) for layer in layers]
            if len(set(values)) > 1:
                raise ValueError(
                    f"the layers of {kind} must have the same {attribute}; received {values}."
                )
        super().__init__(layers[0].d_model, name=name, trainable=trainable, dtype=dtype)
        self.layers = list(layers)
        self.norm = layer_norm(self.dtype_policy, "norm") if layers[0].norm_first else None

    def _build_layers(self, *shapes: Shape) -> None:
        for layer in self.layers:
            ensure_built(layer, *shapes)
        if self.norm is not None:
            ensure_built(self.norm, shapes[0])

    def get_config(self) -> dict[str, Any]:
        layers = [keras.saving.serialize_keras_object(layer) for layer in self.layers]
        return {**super().get_config(), "layers": layers}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        layers = [keras.saving.deserialize_keras_object(layer) for layer in config["layers"]]
        return cls(**{**config, "layers": layers})
