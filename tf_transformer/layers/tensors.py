"""The types of tensors and shapes in signatures."""

from collections.abc import Sequence
from typing import Any

# A tensor of the Keras backend, or an array that it converts.
Tensor = Any
# An int, or an int scalar tensor where it is known in the graph only.
Int = int | Tensor
# Sizes of the axes, None where unknown.
Shape = Sequence[int | None]
