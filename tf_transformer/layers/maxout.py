"""The maxout layer."""

import functools
from typing import Any

import keras
from keras import ops

from tf_transformer.layers.base import DType, HiddenStateLayer, Shape, Tensor, ensure_built
from tf_transformer.layers.rows import on_rows


@keras.saving.register_keras_serializable(package="tf_transformer")
class Maxout(keras.layers.Layer):
    """The largest of each `pool_size` neighbours of a projection (Goodfellow et al. 2013).

    Args:
        units: number of outputs.
        pool_size: how many projections an output is the largest of.
        name, trainable, dtype: as in `keras.layers.Layer`.

    Call arguments:
        x: float tensor `(..., D)`.

    Returns:
        float tensor `(..., units)`.
    """

    def __init__(
        self,
        units: int,
        pool_size: int = 2,
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DType = None,
    ) -> None:
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        self.units = units
        self.pool_size = pool_size
        self.projection = keras.layers.Dense(
            units * pool_size, dtype=self.dtype_policy, name="projection"
        )
        self.supports_masking = True

    def build(self, x_shape: Shape) -> None:
        ensure_built(self.projection, (None, x_shape[-1]))

    def call(self, x: Tensor) -> Tensor:
        return on_rows(self._largest, x)

    def _largest(self, rows: Tensor) -> Tensor:
        pools = ops.reshape(self.projection(rows), (-1, self.units, self.pool_size))
        # `ops.max` checks each time that no axis is empty.
        return functools.reduce(ops.maximum, ops.unstack(pools, self.pool_size, axis=-1))

    compute_output_spec = HiddenStateLayer.compute_output_spec

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return (*x_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "pool_size": self.pool_size}
