"""A stock TensorFlow Serving has all operations of an export; the list is dev/list_served_ops.py's.

A server refuses a graph with an operation that is not registered, in functions too. It switches XLA
off, so nothing that a signature runs may need that.
"""

import pathlib

import pytest
from tensorflow.core.protobuf import saved_model_pb2

LIST = pathlib.Path(__file__).with_name("tf_serving_2.20_ops.txt")


@pytest.fixture
def graph(exported_version):
    content = (exported_version / "saved_model.pb").read_bytes()
    return saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def


def called_functions(graph):
    """The functions that the nodes of the graph call, at any depth, by name."""
    functions = {f.signature.name: f for f in graph.library.function}
    called, waiting = {}, list(graph.node)
    while waiting:
        node = waiting.pop()
        values = node.attr.values()
        names = {node.op, *(value.func.name for value in values)}
        names.update(function.name for value in values for function in value.list.func)
        for name in names & functions.keys() - called.keys():
            called[name] = functions[name]
            waiting.extend(functions[name].node_def)
    return called


def nodes_that_run(graph):
    called = called_functions(graph)
    bodies = [function.node_def for function in called.values()]
    return [node for nodes in (graph.node, *bodies) for node in nodes if node.op not in called]


def unserved(graph):
    served = {line for line in LIST.read_text().splitlines() if not line.startswith("#")}
    assert 1300 < len(served) < 1400
    assert not {"PyFunc", "EagerPyFunc", "XlaDynamicUpdateSlice", "TPUExecute"} & served
    return {
        node.op
        for node in nodes_that_run(graph)
        if node.op not in served or node.attr["_XlaMustCompile"].b
    }


def test_a_server_has_all_operations(graph):
    assert len({node.op for node in nodes_that_run(graph)}) > 50
    assert unserved(graph) == set()


@pytest.mark.parametrize(("op", "must_compile"), [("PyFunc", False), ("NoOp", True)])
def test_an_operation_that_it_lacks_is_found_in_a_function(graph, op, must_compile):
    called = called_functions(graph)
    (inner,) = (f for name, f in called.items() if "translate_nbest" in name and "wrap" not in name)
    others = [f for f in graph.library.function if f.signature.name not in called]
    # A function that no signature calls, such as the search that XLA compiles, does not count.
    for function in (*others, inner):
        assert unserved(graph) == set()
        added = function.node_def.add(name="added", op=op)
        added.attr["_XlaMustCompile"].b = must_compile
    assert unserved(graph) == {op}
