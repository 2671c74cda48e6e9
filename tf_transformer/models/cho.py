"""The RNN encoder-decoder: a GRU that reads, a summary, and a GRU that writes."""

import keras
from keras import ops

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.maxout import Maxout
from tf_transformer.layers.recurrent import GRU, Orthogonal
from tf_transformer.models.recurrent import RecurrentModel, Tensors
from tf_transformer.models.recurrent_configs import ChoConfig


@keras.saving.register_keras_serializable(package="tf_transformer")
class Cho(RecurrentModel):
    """The RNN encoder-decoder (Cho et al. 2014, section 2.2 and appendix A).

    The summary `c = tanh(V h)` of the encoder's last state starts the decoder at `tanh(V' c)`, and
    every step and the maxout output read it too.

    The GRU is Keras': its reset gate acts after the recurrent product and not before it, which
    cuDNN needs, and does not act on the summary.

    Args: as in `SequenceModel`, with a `ChoConfig`.

    Call arguments, returns and raises: as in `RecurrentModel`.
    """

    config_class = ChoConfig

    def _create_layers(self) -> None:
        units, policy = self.config.num_units, self.dtype_policy
        self._create_embeddings()

        def dense(name: str) -> keras.layers.Dense:
            return keras.layers.Dense(units, activation="tanh", dtype=policy, name=name)

        def gru(name: str, **outputs: bool) -> GRU:
            orthogonal = Orthogonal()
            return GRU(units, recurrent_initializer=orthogonal, dtype=policy, name=name, **outputs)

        self.encoder = gru("encoder", return_state=True)
        self.summary, self.first_state = dense("summary"), dense("first_state")
        self.decoder = gru("decoder", return_sequences=True)
        self.readout = Maxout(self.config.d_model, dtype=policy, name="readout")

    def _build_layers(self) -> None:
        width, units = self.config.d_model, self.config.num_units
        self._build_embeddings()
        self.encoder.build((None, None, width))
        self.summary.build((None, units))
        self.first_state.build((None, units))
        self.decoder.build((None, None, width + units))
        self.readout.build((None, None, units + width + units))

    def _encode(self, source_ids: Tensor, training: bool | None) -> tuple[Tensors, Tensors]:
        x = self._embed(self.source_embedding, source_ids, training)
        _, last = self.encoder(x, mask=self._token_mask(source_ids), training=training)
        summary = self.summary(last)
        return {}, {"h": self.first_state(summary), "summary": summary}

    def _decode(
        self, x: Tensor, state: Tensors, source: Tensors, training: bool | None
    ) -> tuple[Tensor, Tensor | None]:
        summaries = ops.repeat(state["summary"][:, None], ops.shape(x)[1], axis=1)
        inputs = ops.concatenate([x, summaries], axis=-1)
        h = self.decoder(inputs, initial_state=[state["h"]], training=training)
        return self.readout(ops.concatenate([h, inputs], axis=-1)), None

    def _step(
        self, x: Tensor, state: Tensors, source: Tensors, beams: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        inputs = ops.concatenate([x, state["summary"]], axis=-1)
        h, _ = self.decoder.cell(inputs, [state["h"]])
        hidden = self.readout(ops.concatenate([h, inputs], axis=-1))
        return hidden, {"h": h, "summary": state["summary"]}
