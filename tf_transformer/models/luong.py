"""Stacked LSTMs with the attention of Luong et al.: global or local, with input feeding."""

import keras
from keras import ops

from tf_transformer.layers.attention import attention_bias
from tf_transformer.layers.base import Tensor
from tf_transformer.layers.recurrent_attention import (
    AdditiveAttention,
    DotAttention,
    GeneralAttention,
    PredictedWindow,
)
from tf_transformer.layers.rows import on_rows
from tf_transformer.models.recurrent import (
    AttentionalModel,
    Tensors,
    by_sentence,
    over_time,
    reversed_order,
)
from tf_transformer.models.recurrent_configs import LuongConfig
from tf_transformer.models.sutskever import Sutskever

_SCORES = {
    "dot": lambda units, **options: DotAttention(**options),
    "general": lambda units, **options: GeneralAttention(**options),
    "concat": AdditiveAttention,
}


@keras.saving.register_keras_serializable(package="tf_transformer")
class Luong(AttentionalModel, Sutskever):
    """The model of Sutskever et al. with attention (Luong, Pham & Manning 2015).

    The top state h after a step queries; of the context c comes the attentional vector
    `tanh(W [c; h])`, which predicts the token and, with input feeding, enters the next step.
    Positions of local attention count in the order of reading.

    Args: as in `SequenceModel`, with a `LuongConfig`.

    Call arguments, returns and raises: as in `AttentionalModel`.
    """

    config_class = LuongConfig

    def _create_layers(self) -> None:
        super()._create_layers()
        config, policy = self.config, self.dtype_policy
        attention = _SCORES[config.attention_score]
        self.attention = attention(config.d_model, dtype=policy, name="attention")
        self.window = None
        if config.attention_window is not None:
            self.window = PredictedWindow(
                config.attention_window, config.d_model, dtype=policy, name="window"
            )
        self.attentional = keras.layers.Dense(
            config.d_model, activation="tanh", use_bias=False, dtype=policy, name="attentional"
        )

    def _build_layers(self) -> None:
        width = self.config.d_model
        hidden_shape = (None, None, width)
        self._build_embeddings()
        self.encoder.build(hidden_shape)
        self.decoder.build((None, None, 2 * width if self.config.input_feeding else width))
        self.attention.build(hidden_shape, hidden_shape)
        if self.window is not None:
            self.window.build(hidden_shape, hidden_shape)
        self.attentional.build((None, 2 * width))

    def _encode(self, source_ids: Tensor, training: bool | None) -> tuple[Tensors, Tensors]:
        context, state, mask = self._read(source_ids, training)
        mask = mask[:, None]
        source = {
            "context": context,
            "keys": self.attention.project_keys(context),
            "bias": attention_bias(mask, self.compute_dtype),
        }
        if self.window is not None:
            source["mask"] = mask
        if self.config.input_feeding:
            state["attentional"] = ops.zeros_like(context[:, 0])
        return source, state

    def _attend(self, query: Tensor, source: Tensors) -> tuple[Tensor, Tensor]:
        """The attentional vectors `(B, T, D)` of top states, and the weights `(B, T, S)`."""
        context, factors = source["context"], None
        if self.window is not None:
            factors = self.window(query, context, attention_mask=source["mask"])
        attended, weights = self.attention.attend(
            query, source["keys"], context, source["bias"], factors
        )
        return on_rows(self.attentional, ops.concatenate([attended, query], axis=-1)), weights

    def _advance(
        self,
        x: Tensor,
        state: Tensors,
        source: Tensors,
        beams: Tensor | None = None,
        factors: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensors, Tensor]:
        """The attentional vectors `(N, D)`, the next state and the weights `(N, S)`."""
        if self.config.input_feeding:
            x = ops.concatenate([x, state["attentional"]], axis=-1)
        h, state = self.decoder.step(x, state, factors)
        hidden, weights = self._attend(by_sentence(h, beams), source)
        hidden = ops.reshape(hidden, (-1, self.config.d_model))
        if self.config.input_feeding:
            state["attentional"] = hidden
        return hidden, state, ops.reshape(weights, (-1, ops.shape(weights)[-1]))

    def _decode(
        self, x: Tensor, state: Tensors, source: Tensors, training: bool | None
    ) -> tuple[Tensor, Tensor | None]:
        if not self.config.input_feeding:
            h, _ = self.decoder(x, states=state, training=training)
            return self._attend(h, source)
        # Drawn here, since a loop should have few operations and no state of random numbers.
        factors = [
            self.dropout(ops.ones_like(x), training=training)
            for _ in range(self.config.num_layers - 1)
            if training
        ]

        def step(inputs, states):
            x, *factors = ops.split(inputs, inputs.shape[-1] // self.config.d_model, axis=-1)
            before = dict(zip(state, states, strict=True))
            hidden, after, weights = self._advance(x, before, source, factors=factors)
            return hidden, weights, [after[name] for name in state]

        inputs = ops.concatenate([x, *factors], axis=-1)
        return over_time(step, list(state.values()), inputs, self.compute_dtype)

    def _step(
        self, x: Tensor, state: Tensors, source: Tensors, beams: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        hidden, state, _ = self._advance(x, state, source, beams)
        return hidden, state

    def _in_order(self, weights: Tensor, source_ids: Tensor) -> Tensor:
        if not self.config.reverse_source:
            return weights
        order = reversed_order(self._token_mask(source_ids))
        return ops.take_along_axis(weights, order[:, None], axis=2)
