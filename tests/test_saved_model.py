"""The SavedModel: loads anywhere, translates as the model in memory, and has the right content."""

import json
import pathlib
import resource
import shutil

import keras
import pytest
import tensorflow as tf
from letters import MAX_LENGTH, give_weights, random_model
from tensorflow.core.protobuf import saved_model_pb2

import tf_transformer as tt
from tf_transformer.export import ExportError
from tf_transformer.inference.versions import SavedModelError


def test_the_saved_model_translates_as_the_model_in_memory(in_memory, loaded, sentences):
    expected = in_memory(sentences)
    assert len(set(expected)) > 30, "translations that differ, or equality says little"
    assert loaded(sentences) == expected


def test_a_translator_uses_the_present_weights_and_an_export_those_of_its_time(
    randomise, letter_tokenizer, sentences, tmp_path
):
    def translator_of(model):
        search = tt.Search(max_length=MAX_LENGTH)
        return tt.Translator.from_model(model, letter_tokenizer, letter_tokenizer, search)

    model = random_model(randomise)
    translate = translator_of(model)
    before = translate(sentences)
    tt.export_saved_model(translate, tmp_path / "demo")
    give_weights(randomise, model, seed=1)
    after = translate(sentences)
    assert after == translator_of(random_model(randomise, seed=1))(sentences) != before
    loaded = tt.Translator.load(tmp_path / "demo")
    keras.utils.set_random_seed(1)  # which makes TensorFlow forget some resources
    assert loaded(sentences) == before


# --- Errors ---------------------------------------------------------------------------------


def test_a_translator_from_disk_cannot_be_exported(loaded, tmp_path):
    with pytest.raises(ExportError, match="copy that folder"):
        tt.export_saved_model(loaded, tmp_path / "demo")
    assert list(tmp_path.iterdir()) == []


def test_another_saved_model_is_refused(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "1"))
    with pytest.raises(SavedModelError, match="no translator"):
        tt.Translator.load(tmp_path)


def junk(path):
    path.write_bytes(b"junk" * 10)


def half(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.index"])
@pytest.mark.parametrize("damage", [junk, half, pathlib.Path.unlink])
def test_a_damaged_saved_model_is_named(exported_version, tmp_path, name, damage):
    folder = tmp_path / "damaged"
    shutil.copytree(exported_version, folder)
    damage(folder / name)
    with pytest.raises(SavedModelError) as caught:
        tt.Translator.load(folder)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{folder}: ")
    assert "tf-transformer export" in line
    assert "b'" not in line


# --- The file -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph(exported_version):
    content = saved_model_pb2.SavedModel.FromString(
        (exported_version / "saved_model.pb").read_bytes()
    )
    (meta_graph,) = content.meta_graphs
    return meta_graph


def test_the_signature_is_text_to_translation(graph):
    signature = graph.signature_def["serving_default"]
    names = {"serving_default", "translate_nbest", "translate_document", "score", "align"}
    assert names <= set(graph.signature_def) <= names | {"__saved_model_init_op"}
    for tensors, name in ((signature.inputs, "text"), (signature.outputs, "translation")):
        assert list(tensors) == [name]
        assert tensors[name].dtype == tf.string.as_datatype_enum
        assert [dim.size for dim in tensors[name].tensor_shape.dim] == [-1]


def test_no_op_needs_xla_or_python(graph):
    functions = graph.graph_def.library.function
    nodes = [*graph.graph_def.node, *(node for f in functions for node in f.node_def)]
    ops = {node.op for node in nodes}
    assert {"SentencepieceOp", "MatMul"} <= ops, "the whole way is in the graph"
    assert {op for op in ops if "piece" in op or op.startswith("TFText")} <= {
        "SentencepieceDetokenizeOp", "SentencepieceIdToStringOp", "SentencepieceOp",
        "SentencepieceTokenizeOp",
    }, "all others are of TensorFlow itself"  # fmt: skip
    assert not [op for op in ops if op.startswith("Xla") or "PyFunc" in op or "Random" in op]
    for holder in [*nodes, *functions]:
        assert not holder.attr["_XlaMustCompile"].b
        assert not holder.attr["_xla_compile_id"].s


def test_assets_hold_the_manifest(echo_translator, tmp_path):
    manifest = {"scores": {"val_bleu": 12.5}, "name": "Übung"}
    path = tt.export_saved_model(echo_translator, tmp_path / "demo", manifest=manifest)
    text = (path / "assets.extra" / "tf_transformer.json").read_text(encoding="utf-8")
    assert json.loads(text).items() >= manifest.items()
    assert "Übung" in text, "readable, not escaped"


def test_a_path_behind_a_link_is_that_of_the_file_system(in_memory, tmp_path, sentences):
    """TensorFlow takes `..` out of a path by its text."""
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "near").symlink_to(tmp_path / "far" / "away")
    version = tt.export_saved_model(in_memory, tmp_path / "near" / ".." / "saved")
    assert version == tmp_path / "far" / "saved" / "1"
    loaded = tt.Translator.load(tmp_path / "near" / ".." / "saved")
    assert loaded(sentences[:3]) == in_memory(sentences[:3])
    assert {path.name for path in tmp_path.iterdir()} == {"far", "near"}


def test_a_full_disk_is_one_line_and_leaves_nothing(in_memory, tmp_path):
    """Lets no file grow, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ExportError, match="Free some space") as refusal:
            tt.export_saved_model(in_memory, tmp_path / "saved")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(str(refusal.value).splitlines()) == 1
    assert not list((tmp_path / "saved").glob("*"))
