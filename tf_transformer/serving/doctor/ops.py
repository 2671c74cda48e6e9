"""The ops of a SavedModel, compared with those that a stock TensorFlow Serving links.

A server refuses to load a model when its graph, or a function that a signature calls, has an op
that is not registered; an op without a kernel fails in its first request. So all ops are looked up
in a list that `dev/list_served_ops.py` made of TensorFlow's public wheels of the server's version;
see there what it holds and lacks. A name in the list says nothing of types: whether an op has a
kernel for its types is seen where the signatures run, with the installed TensorFlow.

This file imports nothing else of the package, so that a process without it can run it too.
"""

import pathlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

SERVER = "TensorFlow Serving 2.20"
_LIST = pathlib.Path(__file__).with_name("tf_serving_2.20_ops.txt")
_INIT_SIGNATURE = "__saved_model_init_op"
_INITIALIZING, _RESTORING, _REST = "initialization", "restoring", "the graph itself"


def served_ops() -> frozenset[str]:
    """The ops that the server links, by name."""
    lines = _LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def nodes_by_part(meta_graph: Any) -> dict[str, list[Any]]:
    """The nodes that each part of a SavedModel runs, those of called functions among them.

    Args:
        meta_graph: A `MetaGraphDef`.

    Returns:
        `NodeDef`s by part: each signature, initialization and restoring, with the functions that
        they call; and the nodes of the graph that none of these runs, which a server builds all the
        same, without theirs. Functions under no signature, such as the searches that XLA compiles,
        are in no part.
    """
    graph = meta_graph.graph_def
    functions = {f.signature.name: list(f.node_def) for f in graph.library.function}
    nodes = {node.name: node for node in graph.node}
    outputs = {
        _INITIALIZING if name == _INIT_SIGNATURE else name: [
            tensor.name for tensor in signature.outputs.values()
        ]
        for name, signature in meta_graph.signature_def.items()
    }
    outputs[_RESTORING] = [meta_graph.saver_def.restore_op_name]
    parts = {name: _ancestors(names, nodes) for name, names in outputs.items()}
    run = {node.name for part in parts.values() for node in part}
    rest = [node for node in graph.node if node.name not in run]
    parts = {name: _with_functions(part, functions) for name, part in parts.items()}
    return {**parts, _REST: rest}


def unserved(parts: Mapping[str, list[Any]], served: Container[str]) -> list[str]:
    """A line for each op that the server does not have.

    Args:
        parts: As `nodes_by_part` returns them.
        served: As `served_ops` returns them.
    """
    users = _users(parts, lambda node: None if node.op in served else f"the op {node.op}")
    return [
        f"{SERVER} does not have {what}, which {by} needs. Export a model without it, or take a "
        f"server that has it."
        for what, by in users
    ]


def needing_xla(parts: Mapping[str, list[Any]]) -> list[str]:
    """A line for each op that only XLA can run, and for functions that XLA must compile.

    Args:
        parts: As `nodes_by_part` returns them.
    """

    def need(node):
        if node.op.startswith("Xla"):
            return f"the op {node.op}"
        if "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b:
            return "a function with jit_compile=True"
        return None

    return [
        f"{by} has {what}, and {SERVER} runs nothing of XLA unless told. Export a model without it."
        for what, by in _users(parts, need)
    ]


def _users(
    parts: Mapping[str, list[Any]], found_in: Callable[[Any], str | None]
) -> list[tuple[str, str]]:
    """What is found in nodes, each with the parts that have it."""
    users: dict[str, set[str]] = {}
    for part, nodes in parts.items():
        for what in filter(None, map(found_in, nodes)):
            users.setdefault(what, set()).add(part)
    return [(what, ", ".join(sorted(by))) for what, by in sorted(users.items())]


def _ancestors(tensors: Iterable[str], nodes: Mapping[str, Any]) -> list[Any]:
    """The nodes that compute these tensors."""
    found: dict[str, Any] = {}
    waiting = [_node_name(tensor) for tensor in tensors]
    while waiting:
        name = waiting.pop()
        if name in nodes and name not in found:
            found[name] = nodes[name]
            waiting.extend(_node_name(tensor) for tensor in nodes[name].input)
    return list(found.values())


def _node_name(tensor: str) -> str:
    return tensor.removeprefix("^").split(":")[0]


def _with_functions(nodes: list[Any], functions: Mapping[str, list[Any]]) -> list[Any]:
    """The nodes, and those of all functions that they call, at any depth; calls are left out."""
    found: list[Any] = []
    called: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        names = {node.op, *_functions_of(node)} & functions.keys()
        if node.op not in functions:
            found.append(node)
        for name in names - called:
            called.add(name)
            waiting.extend(functions[name])
    return found


def _functions_of(node: Any) -> Iterator[str]:
    """The names of the functions in a node's attributes, such as the body of a loop."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)
