"""Runs SavedModels as a server does: restored by the graph's own operation, run in a session.

A script for a process of its own, in which this package cannot be imported. It reads JSON from
standard input, `{"paths": […], "texts": […]}`, and prints as JSON, for each path, what every
signature returns for the texts, and which variables restoring leaves unset.
"""

import json
import sys

sys.modules["tf_transformer"] = None  # makes importing it an error

import tensorflow as tf
import tensorflow_text  # noqa: F401

NO_SIGNATURE = "__saved_model_init_op"


def values(array):
    if array.dtype == object:
        return [v.decode() if isinstance(v, bytes) else values(v) for v in array]
    return array.tolist()


def run(path, texts):
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        meta_graph = tf.compat.v1.saved_model.loader.load(session, ["serve"], path)
        handles = [op for op in graph.get_operations() if op.type == "VarHandleOp"]
        is_set = [tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles]
        flags = session.run(is_set)
        outputs = {}
        for name, signature in meta_graph.signature_def.items():
            if name == NO_SIGNATURE:
                continue
            fetches = {key: tensor.name for key, tensor in signature.outputs.items()}
            feeds = {tensor.name: texts for tensor in signature.inputs.values()}
            found = session.run(fetches, feeds)
            outputs[name] = {key: values(array) for key, array in found.items()}
    return {
        "unset": [op.name for op, flag in zip(handles, flags, strict=True) if not flag],
        "outputs": outputs,
    }


if __name__ == "__main__":
    job = json.load(sys.stdin)
    # Standard JSON has no infinities: a server's answer must not hold one.
    print(json.dumps([run(path, job["texts"]) for path in job["paths"]], allow_nan=False))
