"""Recurrent layers over sequences, on Keras' own, and single steps of them."""

import keras
from keras import ops

from tf_transformer.layers.base import DType, Shape, Tensor, ensure_built

States = dict[str, Tensor]


@keras.saving.register_keras_serializable(package="tf_transformer")
class Orthogonal(keras.initializers.Orthogonal):
    """As Keras', for every dtype: its QR decomposition knows no bfloat16."""

    def __call__(self, shape: Shape, dtype: str | None = None) -> Tensor:
        return ops.cast(super().__call__(shape, "float32"), dtype or "float32")


class _CudnnInTraining:
    """Lets cuDNN run a recurrent layer of Keras in training only.

    Keras takes cuDNN's operation wherever it sees a GPU. A graph with that operation runs on no
    machine without one, and XLA does not compile it; so translation and scoring, which are
    exported, use a loop of the same equations.
    """

    def inner_loop(self, sequences, initial_state, mask, training=False):
        if training:
            return super().inner_loop(sequences, initial_state, mask, training)
        return keras.layers.RNN.inner_loop(self, sequences, initial_state, mask, training)


@keras.saving.register_keras_serializable(package="tf_transformer")
class LSTM(_CudnnInTraining, keras.layers.LSTM):
    """As `keras.layers.LSTM`, with cuDNN in training only."""


@keras.saving.register_keras_serializable(package="tf_transformer")
class GRU(_CudnnInTraining, keras.layers.GRU):
    """As `keras.layers.GRU`, with cuDNN in training only."""


class StackedLSTM(keras.layers.Layer):
    """LSTM layers on top of each other, with dropout between them (Zaremba et al. 2014).

    Args:
        num_layers: number of layers.
        units: D, the width of each.
        dropout_rate: dropout of what a layer passes up to the next; its own state is never dropped.
        name, trainable, dtype: as in `keras.layers.Layer`.

    Call arguments:
        x: float tensor `(B, T, E)`.
        states: as returned, the states to begin with; None for zeros.
        token_mask: bool tensor `(B, T)`, True at tokens, which come before the padding; padding
            changes no state. None where all are tokens.
        training: whether dropout is applied.

    Returns:
        the top layer's states, float tensor `(B, T, D)`, and a dict of the last states of layer i:
        `h{i}` and `c{i}` `(B, D)`.
    """

    def __init__(
        self,
        num_layers: int,
        units: int,
        dropout_rate: float = 0.0,
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DType = None,
    ) -> None:
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        self.units = units
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)
        self.layers = [
            LSTM(
                units,
                return_sequences=True,
                return_state=True,
                recurrent_initializer=Orthogonal(),
                dtype=self.dtype_policy,
                name=f"layer_{index}",
            )
            for index in range(num_layers)
        ]

    def build(self, x_shape: Shape) -> None:
        for index, layer in enumerate(self.layers):
            ensure_built(layer, (None, None, self.units if index else x_shape[-1]))

    def call(
        self,
        x: Tensor,
        states: States | None = None,
        token_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, States]:
        last = {}
        for index, layer in enumerate(self.layers):
            if index:
                x = self.dropout(x, training=training)
            first = None if states is None else [states[f"h{index}"], states[f"c{index}"]]
            x, last[f"h{index}"], last[f"c{index}"] = layer(
                x, initial_state=first, mask=token_mask, training=training
            )
        return x, last

    def compute_output_shape(self, x_shape: Shape) -> tuple[Shape, dict[str, Shape]]:
        names = [f"{kind}{index}" for index in range(len(self.layers)) for kind in "hc"]
        return (*x_shape[:-1], self.units), dict.fromkeys(names, (x_shape[0], self.units))

    def step(
        self, x: Tensor, states: States, factors: list[Tensor] | None = None
    ) -> tuple[Tensor, States]:
        """One step of all layers.

        Args:
            x: float tensor `(N, E)`.
            states: the states before the step, as in a call; other entries are ignored.
            factors: `(N, D)` for each layer but the first, which multiply what it reads, such as
                dropout that is drawn before a loop; None for none.

        Returns:
            the top layer's state `(N, D)`, and all states after the step.
        """
        last = {}
        for index, layer in enumerate(self.layers):
            if index and factors:
                x = x * factors[index - 1]
            before = [states[f"h{index}"], states[f"c{index}"]]
            x, (last[f"h{index}"], last[f"c{index}"]) = layer.cell(x, before)
        return x, last
