"""The SavedModel: it translates as in memory, loads anywhere, and a server has what it needs."""

import functools
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from commands import last_json, run_python, small_files
from graph_session import SCRIPT, Server
from letters import MAX_LENGTH, give_weights, random_model, translator_of
from small_models import ALIGNING, GENERATING
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import config_pb2, saved_model_pb2

import tf_transformer as tt
from tf_transformer.export.folding import freeze
from tf_transformer.export.manifest import ExportError
from tf_transformer.inference.versions import SavedModelError
from tf_transformer.models.architectures import ARCHITECTURES

# What a stock TensorFlow Serving has registered; dev/list_served_ops.py writes it.
SERVED_OPS = pathlib.Path(__file__).with_name("tf_serving_2.20_ops.txt")
C_PROGRAM = pathlib.Path(__file__).with_name("translate.c")


@pytest.mark.slow
def test_a_translator_uses_the_present_weights_and_an_export_those_of_its_time(
    randomise, letter_tokenizer, sentences, tmp_path
):
    """Also, a path behind a link is that of the file system: TensorFlow would take out its `..`."""
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "near").symlink_to(tmp_path / "far" / "away")
    model = random_model(randomise)
    translate = translator_of(model, letter_tokenizer)
    before = translate(sentences)
    manifest = {"scores": {"val_bleu": 12.5}, "name": "Übung"}
    folder = tmp_path / "near" / ".." / "saved"
    path = tt.export_saved_model(translate, folder, manifest=manifest)
    assert path == tmp_path / "far" / "saved" / "1"
    assert {path.name for path in tmp_path.iterdir()} == {"far", "near"}
    text = (path / "assets.extra" / "tf_transformer.json").read_text(encoding="utf-8")
    assert json.loads(text).items() >= manifest.items() and "Übung" in text
    give_weights(randomise, model, seed=1)
    after = translate(sentences)
    other = translator_of(random_model(randomise, seed=1), letter_tokenizer)
    assert after == other(sentences) != before
    loaded = tt.Translator.load(folder)
    keras.utils.set_random_seed(1)  # which makes TensorFlow forget some resources
    assert loaded(sentences) == before


# In a graph session, the first in a process without this package. Kinds: architecture, dtype and
# beam size.
GREEDY = ("transformer", "float32", 1)
OTHERS = [(name, "float32", 3) for name in GENERATING if name in ARCHITECTURES][1:]
OTHERS.append(("transformer", "bfloat16", 3))
EVERY_KIND = pytest.mark.parametrize(
    "kind", [GREEDY, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)], ids=str
)


def in_session(path, texts):
    """The results of `graph_session.py` for a SavedModel."""
    job = {"path": str(path), "texts": texts}
    result = last_json(run_python("-I", SCRIPT, input=json.dumps(job)))
    assert result["unset"] == [], "restoring sets every variable"
    return result["outputs"]


@pytest.fixture(scope="module")
def texts(sentences):
    # One of them is empty, and one is truncated.
    return [*sentences[:30], "", "a " * 200]


@pytest.fixture(scope="module")
def translators(in_memory, randomise, letter_tokenizer):
    """Returns the translator of a kind, of random weights."""

    @functools.cache
    def make(kind):
        if kind == GREEDY:
            return in_memory
        architecture, dtype, beam_size = kind
        model = random_model(randomise, dtype=dtype, architecture=architecture)
        if dtype == "bfloat16":  # so coarse that another order of operations gives other texts
            model = freeze(model, MAX_LENGTH)
        repair = architecture == "transformer"  # whose graph is larger
        options = {"beam_size": beam_size, "repair_loops": repair}
        return translator_of(model, letter_tokenizer, **options)

    return make


@pytest.fixture(scope="module")
def exports(translators, exported_version, tmp_path_factory):
    """Returns the folder of the SavedModel of a kind."""

    @functools.cache
    def export_of(kind):
        if kind == GREEDY:
            return exported_version
        folder = tmp_path_factory.mktemp("saved_models") / "model"
        return tt.export_saved_model(translators(kind), folder)

    return export_of


@pytest.fixture(scope="module")
def sessions(exports, texts):
    """Returns the outputs of a server for the SavedModel of a kind."""

    @functools.cache
    def session_of(kind):
        if kind == GREEDY:
            return in_session(exports(kind), texts)
        server = Server(str(exports(kind)))
        assert server.unset == []
        outputs = {name: server.run(name, texts) for name in server.signatures}
        return json.loads(json.dumps(outputs, allow_nan=False))

    return session_of


@EVERY_KIND
def test_a_session_translates_as_the_translator(sessions, translators, loaded, texts, kind):
    expected = translators(kind)(texts)
    assert len(set(expected)) >= 15, "translations that differ, or equality says little"
    assert sessions(kind)["serving_default"] == {"translation": expected}
    if kind == GREEDY:
        assert loaded(texts) == expected


@EVERY_KIND
def test_a_session_gives_the_n_best_of_the_translator(sessions, translators, texts, kind):
    found = sessions(kind)["translate_nbest"]
    assert set(found) == {"translations", "scores", "lengths", "flags", "truncated"}
    n_best = 3 if kind[2] == 3 else 4
    expected = translators(kind).n_best(texts, n_best, beam_size=n_best)
    for row, hypotheses in enumerate(expected):
        missing = n_best - len(hypotheses)
        assert found["translations"][row] == [h.text for h in hypotheses] + [""] * missing
        assert found["lengths"][row] == [h.length for h in hypotheses] + [0] * missing
        scores = found["scores"][row]
        assert scores[: len(hypotheses)] == pytest.approx([h.score for h in hypotheses], rel=1e-5)
        # A missing hypothesis has a score that JSON can hold and that sorts last.
        assert all(score < min(scores[: len(hypotheses)]) for score in scores[len(hypotheses) :])
    assert any(len(hypotheses) < n_best for hypotheses in expected), "some are missing"
    assert found["truncated"][-1] and not all(found["truncated"])


@EVERY_KIND
@pytest.mark.parametrize("name", ["score", "align"])
def test_a_session_scores_and_aligns_as_the_translator(sessions, translators, texts, kind, name):
    signature = getattr(translators(kind).module, name)
    if signature is None:
        assert name == "align" and kind[0] not in ALIGNING
        return
    found = sessions(kind)[name]
    expected = signature(*[tf.constant(texts)] * 2)
    assert set(found) == set(expected)
    for key, values in expected.items():
        if values.dtype == tf.string:
            decoded = [[subword.decode() for subword in row] for row in values.numpy().tolist()]
            assert found[key] == decoded
        else:
            np.testing.assert_allclose(found[key], values.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="no C compiler")
def test_a_c_program_translates_as_the_translator(
    exported_version, loaded, meta_graph, texts, tmp_path
):
    program, texts = tmp_path / "translate", [*texts, "Übergrößenträger 日本"]
    libraries = pathlib.Path(tf.sysconfig.get_lib())
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-o", program, C_PROGRAM,
         "-I", tf.sysconfig.get_include(), "-L", libraries, f"-Wl,-rpath,{libraries}",
         "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"],
        check=True,
    )  # fmt: skip
    signature = meta_graph.signature_def["serving_default"]
    text_ops = pathlib.Path(importlib.util.find_spec("tensorflow_text").origin).parent
    done = subprocess.run(
        [program, exported_version, signature.inputs["text"].name,
         signature.outputs["translation"].name,
         text_ops / "python" / "ops" / "_sentencepiece_tokenizer.so"],
        input="".join(f"{text}\n" for text in texts).encode(),
        capture_output=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:].decode()
    assert done.stdout.decode() == "".join(f"{text}\n" for text in loaded(texts))


# The graph, in whose functions, too, a server refuses an operation that it lacks


@pytest.fixture(scope="module")
def meta_graph(exported_version):
    content = (exported_version / "saved_model.pb").read_bytes()
    (meta_graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    return meta_graph


def called_functions(graph):
    """The functions that nodes of the graph call, at any depth, by name."""
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


def unserved(graph):
    """The operations that run, and that a stock server lacks or has switched off, such as XLA."""
    served = {line for line in SERVED_OPS.read_text().splitlines() if not line.startswith("#")}
    assert 1300 < len(served) < 1400
    assert not {"PyFunc", "EagerPyFunc", "XlaDynamicUpdateSlice", "TPUExecute"} & served
    called = called_functions(graph)
    bodies = [graph.node, *(function.node_def for function in called.values())]
    nodes = [node for body in bodies for node in body if node.op not in called]
    assert len({node.op for node in nodes}) > 50
    return {n.op for n in nodes if n.op not in served or n.attr["_XlaMustCompile"].b}


def test_a_server_has_all_operations_and_would_miss_any(meta_graph):
    graph = type(meta_graph.graph_def).FromString(meta_graph.graph_def.SerializeToString())
    called = called_functions(graph)
    (inner,) = (f for name, f in called.items() if "translate_nbest" in name and "wrap" not in name)
    others = [f for f in graph.library.function if f.signature.name not in called]
    assert others
    for op, must_compile in (("PyFunc", False), ("NoOp", True)):
        # A function that no signature calls does not count.
        added = node_def_pb2.NodeDef(name="added", op=op)
        added.attr["_XlaMustCompile"].b = must_compile
        for function in others:
            function.node_def.append(added)
        assert unserved(graph) == set()
        inner.node_def.append(added)
        assert unserved(graph) == {op}
        inner.node_def.pop()


def test_searches_and_rare_branches_are_not_inlined(meta_graph):
    graph = meta_graph.graph_def
    called = called_functions(graph)
    apart = [name for name, function in called.items() if function.attr["_noinline"].b]
    expected = ["_in_sentences_", "_differ_", "_repeated_", "_greedy_", "_beam_"]
    assert all(any(part in name for name in apart) for part in expected)
    assert all(any(part in name for part in expected) for name in apart)


def test_functions_that_are_called_are_optimized_once(meta_graph):
    """With the graph that calls them; again for each call, a server would load for minutes."""
    called = called_functions(meta_graph.graph_def).values()
    nodes = [node for function in called for node in function.node_def]
    configs = [node.attr["config_proto"].s for node in nodes if "config_proto" in node.attr]
    assert len(configs) > 5
    for config in map(config_pb2.ConfigProto.FromString, configs):
        assert config.graph_options.rewrite_options.disable_meta_optimizer


def test_the_signature_is_text_to_translation(meta_graph):
    signature = meta_graph.signature_def["serving_default"]
    for tensors, name in ((signature.inputs, "text"), (signature.outputs, "translation")):
        assert list(tensors) == [name]
        assert tensors[name].dtype == tf.string.as_datatype_enum
        assert [dim.size for dim in tensors[name].tensor_shape.dim] == [-1]


# Errors and paths


def test_what_is_no_export_of_a_model_is_refused(loaded, tmp_path):
    with pytest.raises(ExportError, match="copy that folder"):
        tt.export_saved_model(loaded, tmp_path / "demo")
    assert list(tmp_path.iterdir()) == []
    tf.saved_model.save(tf.Module(), str(tmp_path / "1"))
    with pytest.raises(SavedModelError, match="no translator"):
        tt.Translator.load(tmp_path)


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.index"])
def test_a_damaged_saved_model_is_named(exported_version, tmp_path, name):
    folder = shutil.copytree(exported_version, tmp_path / "damaged")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(SavedModelError, match=f"^{folder}: .*tf-transformer export") as caught:
        tt.Translator.load(folder)
    assert "\n" not in str(caught.value) and "b'" not in str(caught.value)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_nothing(in_memory, tmp_path):
    with small_files(4096), pytest.raises(ExportError, match=r"^[^\n]*Free some space[^\n]*\Z"):
        tt.export_saved_model(in_memory, tmp_path / "saved")
    assert not list((tmp_path / "saved").glob("*"))
