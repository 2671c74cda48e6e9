"""Runs SavedModels as a server does: restored by the graph's own operation, run in a session.

A script for a process of its own, in which this package cannot be imported. It reads
JSON from standard input, `{"path": …, "texts": […]}`, and prints as JSON what every signature
returns for the texts, and which variables restoring leaves unset.
"""

import json
import pathlib
import sys

import numpy as np

SCRIPT = pathlib.Path(__file__)
NO_SIGNATURE = "__saved_model_init_op"


def values(array):
    if array.dtype == object:
        return [v.decode() if isinstance(v, bytes) else values(v) for v in array]
    return array.tolist()


class Server:
    """A SavedModel in a session of its own."""

    def __init__(self, path):
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            self.session = tf.compat.v1.Session(graph=graph)
            meta_graph = tf.compat.v1.saved_model.loader.load(self.session, ["serve"], path)
            handles = [op for op in graph.get_operations() if op.type == "VarHandleOp"]
            is_set = [tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles]
            flags = self.session.run(is_set)
        self.unset = [op.name for op, flag in zip(handles, flags, strict=True) if not flag]
        self.signatures = dict(meta_graph.signature_def)
        self.signatures.pop(NO_SIGNATURE, None)

    def run(self, name, texts):
        """The outputs of a signature for texts, or for the texts of each input by its name."""
        signature = self.signatures[name]
        if not isinstance(texts, dict):
            texts = dict.fromkeys(signature.inputs, texts)
        feeds = {signature.inputs[key].name: array(side) for key, side in texts.items()}
        fetches = {key: tensor.name for key, tensor in signature.outputs.items()}
        found = self.session.run(fetches, feeds)
        return {key: values(array) for key, array in found.items()}


def array(texts):
    # A lone surrogate stands for a byte that is not UTF-8.
    texts = [t if isinstance(t, bytes) else t.encode("utf-8", "surrogateescape") for t in texts]
    return np.array(texts, object)


if __name__ == "__main__":
    sys.modules["tf_transformer"] = None  # makes importing it an error
    import tensorflow_text  # noqa: F401

    job = json.load(sys.stdin)
    server = Server(job["path"])
    outputs = {name: server.run(name, job["texts"]) for name in server.signatures}
    # Standard JSON has no infinities: a server's answer must not hold one.
    print(json.dumps({"unset": server.unset, "outputs": outputs}, allow_nan=False))
