"""A SavedModel in a graph session, as TensorFlow Serving loads and runs it.

This file imports nothing else of the package, so that a process without it can run it too.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Registers the ops of SentencePiece.
import tensorflow_text  # noqa: F401

_INIT_SIGNATURE = "__saved_model_init_op"
_TAGS = ["serve"]


class TensorSpec(NamedTuple):
    """An input or output of a signature.

    Attributes:
        dtype: NumPy's name of it, or `"string"`.
        shape: Sizes of the axes, None where any is allowed.
    """

    dtype: str
    shape: tuple[int | None, ...]


class Signature(NamedTuple):
    """What a signature takes and returns, by name."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


class Servable:
    """One version of a model, loaded.

    Its variables are restored by the graph's own operation and no Python of the exporter runs, so
    what works here works in a server. It may be used from several threads.

    Args:
        folder: A SavedModel, such as `saved_models/de_en/1`.
        threads: Threads of one operation, and operations at a time; None is TensorFlow's choice.
            With 1 all runs in the thread that calls `run`, and calls from several share nothing.

    Attributes:
        folder: As given.
        meta_graph: The `MetaGraphDef` that was loaded.
        signatures: The signatures by name.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no SavedModel.
        tf.errors.OpError: It is damaged, or holds an operation that is not registered.
    """

    def __init__(self, folder: str | os.PathLike[str], threads: int | None = None) -> None:
        self.folder = os.fspath(folder)
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads or 0,
            inter_op_parallelism_threads=-1 if threads == 1 else threads or 0,
        )
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        try:
            with self._session.graph.as_default():
                self.meta_graph = tf.compat.v1.saved_model.loader.load(
                    self._session, _TAGS, os.path.realpath(self.folder)
                )
        except BaseException:
            self._session.close()
            raise
        definitions = {
            name: definition
            for name, definition in self.meta_graph.signature_def.items()
            if name != _INIT_SIGNATURE
        }
        self.signatures = {
            name: Signature(_specs(definition.inputs), _specs(definition.outputs))
            for name, definition in definitions.items()
        }
        self._functions = {
            name: self._session.make_callable(
                {key: tensor.name for key, tensor in definition.outputs.items()},
                [tensor.name for tensor in definition.inputs.values()],
            )
            for name, definition in definitions.items()
        }

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            signature: A key of `signatures`.
            inputs: An array, or nested lists, for each input of the signature.

        Returns:
            An array for each output; strings are bytes.

        Raises:
            KeyError: There is no such signature, or an input is missing.
            tf.errors.OpError: An operation failed.
        """
        specs = self.signatures[signature].inputs
        return self._functions[signature](
            *(_array(inputs[name], spec) for name, spec in specs.items())
        )

    def unset_variables(self) -> list[str]:
        """The names of variables that restoring left without a value."""
        with self._session.graph.as_default():
            handles = [
                op for op in self._session.graph.get_operations() if op.type == "VarHandleOp"
            ]
            flags = self._session.run(
                [tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles]
            )
        return [op.name for op, is_set in zip(handles, flags, strict=True) if not is_set]

    def close(self) -> None:
        """Frees its memory. Nothing may be running."""
        self._session.close()


def _specs(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(
            tf.as_dtype(tensor.dtype).name,
            tuple(None if axis.size < 0 else axis.size for axis in tensor.tensor_shape.dim),
        )
        for name, tensor in tensors.items()
    }


def _array(value: Any, spec: TensorSpec) -> np.ndarray:
    # NumPy's own strings would drop NULs at the end of a text.
    return np.asarray(value, dtype=object if spec.dtype == "string" else spec.dtype)
