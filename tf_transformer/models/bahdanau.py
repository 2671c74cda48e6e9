"""RNNsearch: the first translation model that attends to the source."""

import keras
from keras import ops

from tf_transformer.layers.attention import attention_bias
from tf_transformer.layers.base import Tensor
from tf_transformer.layers.maxout import Maxout
from tf_transformer.layers.recurrent import GRU, Orthogonal
from tf_transformer.layers.recurrent_attention import AdditiveAttention
from tf_transformer.models.recurrent import AttentionalModel, Tensors, by_sentence, over_time
from tf_transformer.models.recurrent_configs import BahdanauConfig


@keras.saving.register_keras_serializable(package="tf_transformer")
class Bahdanau(AttentionalModel):
    """A bidirectional GRU encoder, and a GRU decoder that attends to it at each step.

    Bahdanau, Cho & Bengio 2015. The state before a step queries an additive score; the context
    enters the GRU with the token's embedding. The maxout output reads the state after the step, as
    in the paper's formula 4; its appendix A.2.2 has the state before it. The GRU is Keras': its
    reset gate acts after the recurrent product and not before it, which cuDNN needs.

    Args: as in `SequenceModel`, with a `BahdanauConfig`.

    Call arguments, returns and raises: as in `AttentionalModel`.
    """

    config_class = BahdanauConfig

    def _create_layers(self) -> None:
        units, policy = self.config.num_units, self.dtype_policy
        self._create_embeddings()
        self.encoder = keras.layers.Bidirectional(
            GRU(
                units,
                return_sequences=True,
                return_state=True,
                recurrent_initializer=Orthogonal(),
                dtype=policy,
                name="gru",
            ),
            dtype=policy,
            name="encoder",
        )
        self.first_state = keras.layers.Dense(
            units, activation="tanh", dtype=policy, name="first_state"
        )
        self.attention = AdditiveAttention(units, dtype=policy, name="attention")
        # A loop calls its cell.
        self.decoder = GRU(units, recurrent_initializer=Orthogonal(), dtype=policy, name="decoder")
        self.readout = Maxout(self.config.d_model, dtype=policy, name="readout")

    def _build_layers(self) -> None:
        width, units = self.config.d_model, self.config.num_units
        self._build_embeddings()
        self.encoder.build((None, None, width))
        self.first_state.build((None, units))
        self.attention.build((None, None, units), (None, None, 2 * units))
        self.decoder.build((None, None, width + 2 * units))
        self.readout.build((None, None, units + width + 2 * units))

    def _encode(self, source_ids: Tensor, training: bool | None) -> tuple[Tensors, Tensors]:
        mask = self._token_mask(source_ids)
        x = self._embed(self.source_embedding, source_ids, training)
        # The backward direction ends at the first token.
        context, _, backward = self.encoder(x, mask=mask, training=training)
        source = {
            "context": context,
            "keys": self.attention.project_keys(context),
            "bias": attention_bias(mask[:, None], self.compute_dtype),
        }
        return source, {"h": self.first_state(backward)}

    def _advance(
        self, x: Tensor, h: Tensor, source: Tensors, beams: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The next state `(N, D)`, the context it read `(N, C)` and the weights `(N, S)`."""
        attended, weights = self.attention.attend(
            by_sentence(h, beams), source["keys"], source["context"], source["bias"]
        )
        attended = ops.reshape(attended, (-1, attended.shape[-1]))
        weights = ops.reshape(weights, (-1, ops.shape(weights)[-1]))
        h, _ = self.decoder.cell(ops.concatenate([x, attended], axis=-1), [h])
        return h, attended, weights

    def _decode(
        self, x: Tensor, state: Tensors, source: Tensors, training: bool | None
    ) -> tuple[Tensor, Tensor | None]:
        def step(x, states):
            h, attended, weights = self._advance(x, states[0], source)
            return ops.concatenate([h, attended], axis=-1), weights, [h]

        outputs, weights = over_time(step, [state["h"]], x, self.compute_dtype)
        h, attended = ops.split(outputs, [self.config.num_units], axis=-1)
        return self.readout(ops.concatenate([h, x, attended], axis=-1)), weights

    def _step(
        self, x: Tensor, state: Tensors, source: Tensors, beams: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        h, attended, _ = self._advance(x, state["h"], source, beams)
        return self.readout(ops.concatenate([h, x, attended], axis=-1)), {"h": h}
