"""Stacks of Keras' recurrent layers, which can also run single steps, and maxout."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_transformer.layers.base import Layer, Shape, Tensor, on_rows

States = dict[str, Tensor]


@keras.saving.register_keras_serializable(package="tf_transformer")
class Orthogonal(keras.initializers.Orthogonal):
    """Keras' initializer in float32, then cast: QR decomposition does not support bfloat16."""

    def __call__(self, shape: Shape, dtype: str | None = None) -> Tensor:
        return ops.cast(super().__call__(shape, "float32"), dtype or "float32")


class _CudnnInTraining:
    """Mixin for recurrent layers of Keras that use cuDNN in training only.

    Keras uses cuDNN's operation wherever it sees a GPU. A graph with that operation runs only on
    machines with a GPU. So translation and scoring, which are exported, use a loop of the same
    equations.
    """

    def inner_loop(self, sequences: Any, initial_state: Any, mask: Any, training: Any) -> Any:
        if training:
            return super().inner_loop(sequences, initial_state, mask, training)
        return keras.layers.RNN.inner_loop(self, sequences, initial_state, mask, training)


@keras.saving.register_keras_serializable(package="tf_transformer")
class LSTM(_CudnnInTraining, keras.layers.LSTM):
    """A `keras.layers.LSTM` that uses cuDNN in training only."""


@keras.saving.register_keras_serializable(package="tf_transformer")
class GRU(_CudnnInTraining, keras.layers.GRU):
    """A `keras.layers.GRU` that uses cuDNN in training only."""


class RecurrentStack(keras.layers.Layer):
    """Recurrent layers on top of each other, with dropout between them (Zaremba et al. 2014).

    The GRU is that of Keras: its reset gate acts after the recurrent product, as cuDNN requires. In
    Bahdanau et al. 2015 and in the encoder of Cho et al. 2014 the gate acts before the product.

    Args:
        cell: `"lstm"` or `"gru"`.
        num_layers: number of layers.
        units: D, the width of each layer in each direction.
        dropout_rate: dropout of the sequence that a layer passes to the next layer, not of states.
        bidirectional: whether each layer reads in both directions.

    Call arguments:
        x: float tensor `(B, T, E)`.
        states: the states to begin with, a dict like the one returned; None for zeros.
        token_mask: bool tensor `(B, T)`, True at tokens, which come before the padding; padding
            changes no state. None if there is no padding.

    Returns:
        the top layer's states, float tensor `(B, T, D)`, or `(B, T, 2 * D)` of both directions; and
        a dict of the last states of layer i, `h{i}` and for an LSTM `c{i}`, all `(B, D)`. For a
        bidirectional layer these are the backward direction's, which ends at the first token.
    """

    def __init__(
        self,
        cell: str,
        num_layers: int,
        units: int,
        dropout_rate: float = 0.0,
        bidirectional: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        kind, self._states = {"lstm": (LSTM, ("h", "c")), "gru": (GRU, ("h",))}[cell]
        self.width = 2 * units if bidirectional else units
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)
        self.layers, returned = [], {"return_sequences": True, "return_state": True}
        for index in range(num_layers):
            options = {"dtype": self.dtype_policy, "name": f"layer_{index}"}
            layer = kind(units, recurrent_initializer=Orthogonal(), **returned, **options)
            both = keras.layers.Bidirectional(layer, **options) if bidirectional else layer
            self.layers.append(both)

    def build(self, x_shape: Shape) -> None:
        for index, layer in enumerate(self.layers):
            layer.build((None, None, self.width if index else x_shape[-1]))

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
            names = self._names(index)
            first = None if states is None else [states[name] for name in names]
            x, *after = layer(x, initial_state=first, mask=token_mask, training=training)
            last.update(zip(names, after[-len(names) :], strict=True))
        return x, last

    def step(
        self, x: Tensor, states: States, factors: list[Tensor] | None = None
    ) -> tuple[Tensor, States]:
        """Run one step of all layers; return the top layer's state `(N, D)`, and all new states.

        Takes inputs `(N, E)` and the states before the step; other entries of `states` are ignored.
        `factors` `(N, D)`, such as dropout drawn before a loop, multiply inputs of upper layers.
        """
        last = {}
        for index, layer in enumerate(self.layers):
            if index and factors:
                x = x * factors[index - 1]
            names = self._names(index)
            x, after = layer.cell(x, [states[name] for name in names])
            last.update(zip(names, after, strict=True))
        return x, last

    def top(self, states: States) -> Tensor:
        """Return the top layer's state `(N, D)`."""
        return states[f"h{len(self.layers) - 1}"]

    def _names(self, index: int) -> list[str]:
        return [f"{kind}{index}" for kind in self._states]


class Maxout(Layer):
    """A projection, and the maximum of each `pool_size` neighbours (Goodfellow et al. 2013).

    Maps a float tensor `(..., D)` to `(..., units)`.

    Example:
        >>> tt.Maxout(units=4)(np.ones((1, 5, 8))).shape
        TensorShape([1, 5, 4])
    """

    def __init__(self, units: int, pool_size: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.pool_size = units, pool_size
        size, policy = units * pool_size, self.dtype_policy
        self.projection = keras.layers.Dense(size, dtype=policy, name="projection")

    def build(self, x_shape: Shape) -> None:
        self.projection.build((None, x_shape[-1]))

    def call(self, x: Tensor) -> Tensor:
        return on_rows(self._largest, x)

    def _largest(self, rows: Tensor) -> Tensor:
        pools = ops.reshape(self.projection(rows), (-1, self.units, self.pool_size))
        # When run eagerly, `ops.max` also checks at each call that its input is not empty.
        return functools.reduce(ops.maximum, ops.unstack(pools, self.pool_size, axis=-1))


def over_time(
    step: Callable, state: list[Tensor], inputs: Tensor, dtype: str
) -> tuple[Tensor, Tensor]:
    """Run a step with attention at each position of `inputs` `(B, T, E)`.

    The step is `(inputs (B, E), state) -> outputs (B, F), weights (B, S), state`; `state` lists the
    first states `(B, D)`. Returns outputs `(B, T, F)` and weights `(B, T, S)`, all of `dtype`.
    """

    class Cell:
        """The interface that `keras.layers.RNN` requires of a cell."""

        state_size, compute_dtype = [tensor.shape[-1] for tensor in state], dtype

        def call(self, inputs: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            outputs, weights, states = step(inputs, states)
            self.num_outputs = outputs.shape[-1]
            return ops.concatenate([outputs, weights], axis=-1), states

        __call__ = call

    cell = Cell()
    # Keras' loop and not `ops.scan`, whose gradients XLA does not compile (Keras 3.15.1).
    loop = keras.layers.RNN(cell, return_sequences=True, dtype=dtype)
    both, size = loop(inputs, initial_state=state), cell.num_outputs
    # TensorFlow does not infer the size of this slice where S is unknown.
    outputs = ops.reshape(both[..., :size], (-1, ops.shape(inputs)[1], size))
    return outputs, both[..., size:]
