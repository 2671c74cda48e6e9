"""Sequence to sequence learning with deep LSTMs, without attention."""

import keras
from keras import ops

from tf_transformer.layers.base import Tensor
from tf_transformer.layers.recurrent import StackedLSTM
from tf_transformer.models.recurrent import RecurrentModel, Tensors, reversed_order
from tf_transformer.models.recurrent_configs import SutskeverConfig


@keras.saving.register_keras_serializable(package="tf_transformer")
class Sutskever(RecurrentModel):
    """A deep LSTM reads the source, reversed, and another writes the target.

    Sutskever, Vinyals & Le 2014. The last states of each encoder layer are the first of the decoder
    layer of the same height: all that the decoder knows of the source.

    Args: as in `SequenceModel`, with a `SutskeverConfig`.

    Call arguments, returns and raises: as in `RecurrentModel`.
    """

    config_class = SutskeverConfig

    def _create_layers(self) -> None:
        config, policy = self.config, self.dtype_policy
        self._create_embeddings()
        self.encoder, self.decoder = (
            StackedLSTM(
                config.num_layers, config.d_model, config.dropout_rate, dtype=policy, name=name
            )
            for name in ("encoder", "decoder")
        )

    def _build_layers(self) -> None:
        self._build_embeddings()
        self.encoder.build((None, None, self.config.d_model))
        self.decoder.build((None, None, self.config.d_model))

    def _encode(self, source_ids: Tensor, training: bool | None) -> tuple[Tensors, Tensors]:
        _, state, _ = self._read(source_ids, training)
        return {}, state

    def _read(self, source_ids: Tensor, training: bool | None) -> tuple[Tensor, Tensors, Tensor]:
        """The states at all tokens in the order of reading, the last ones, and the token mask."""
        mask = self._token_mask(source_ids)
        if self.config.reverse_source:
            source_ids = ops.take_along_axis(source_ids, reversed_order(mask), axis=1)
        x = self._embed(self.source_embedding, source_ids, training)
        return *self.encoder(x, token_mask=mask, training=training), mask

    def _decode(
        self, x: Tensor, state: Tensors, source: Tensors, training: bool | None
    ) -> tuple[Tensor, Tensor | None]:
        hidden, _ = self.decoder(x, states=state, training=training)
        return hidden, None

    def _step(
        self, x: Tensor, state: Tensors, source: Tensors, beams: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        return self.decoder.step(x, state)
