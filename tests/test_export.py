"""The SavedModel: text in, text out, loads anywhere, appears whole or not at all."""

import json
import pathlib
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_transformer as tt
from tf_transformer.export import saved_model
from tf_transformer.export.saved_model import find_saved_model, write_saved_model
from tf_transformer.export.translator import ExportTranslator
from tf_transformer.export.versions import ExportError

PIECES = 280
MAX_LENGTH = 24
EOS = 3


@pytest.fixture(scope="module")
def sentences():
    """60 different sentences of 1 to 12 letters, short and long in turns."""
    rng = random.Random(0)
    drawn = {" ".join(rng.choices("abcdefghij", k=rng.randint(1, 12))) for _ in range(80)}
    return sorted(drawn, key=lambda sentence: rng.random())[:60]


@pytest.fixture(scope="module")
def tokenizer(sentences):
    return tt.SentencePieceTokenizer.train(sentences, PIECES)


@pytest.fixture(scope="module")
def echo(echo_model, tokenizer):
    return tt.Translator.from_model(echo_model(PIECES), tokenizer, tokenizer, MAX_LENGTH)


def random_model(randomise, seed=0):
    config = tt.TransformerConfig(
        PIECES, PIECES, num_layers=1, d_model=16, num_heads=2, d_ff=32, tie_embeddings=False
    )
    model = tt.Transformer(config)
    give_weights(randomise, model, seed)
    return model


def give_weights(randomise, model, seed):
    """Weights of chance, with which some translations end by themselves and some are cut off."""
    randomise(model, seed)
    bias = model.output_projection.bias
    bias.assign_add(np.where(np.arange(PIECES) == EOS, 2.0, 0.0))


@pytest.fixture(scope="module")
def in_memory(randomise, tokenizer):
    """A Transformer of random weights: what it says means nothing, but is the hardest to repeat."""
    return tt.Translator.from_model(random_model(randomise), tokenizer, tokenizer, MAX_LENGTH)


@pytest.fixture(scope="module")
def exported(in_memory, tmp_path_factory):
    """A version of that Transformer, in a folder that has been moved since."""
    written = in_memory.save(tmp_path_factory.mktemp("saved_models") / "demo", version=3)
    moved = tmp_path_factory.mktemp("elsewhere") / "moved"
    shutil.move(written, moved)
    return moved


@pytest.fixture(scope="module")
def loaded(exported):
    return tt.Translator.load(exported)


# --- The same translations, wherever they are made --------------------------------------------


def test_the_saved_model_translates_as_the_model_in_memory(in_memory, loaded, sentences):
    expected = in_memory(sentences)
    assert len(set(expected)) > 30, "translations that differ, or equality says little"
    assert loaded(sentences) == expected


FRESH_PROCESS = """
import json, sys
sys.modules["tf_transformer"] = None  # importing it is an error from here on
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

path, texts = sys.argv[1], json.loads(sys.stdin.read())
graph = saved_model_pb2.SavedModel.FromString(open(f"{path}/saved_model.pb", "rb").read())
(meta_graph,) = graph.meta_graphs
nodes = list(meta_graph.graph_def.node)
for function in meta_graph.graph_def.library.function:
    nodes += function.node_def
names = {function.signature.name for function in meta_graph.graph_def.library.function}
beyond_core = {node.op for node in nodes if op_def_registry.get(node.op) is None} - names

import tensorflow_text

translate = tf.saved_model.load(path).signatures["serving_default"]
def run(texts):
    return [text.decode() for text in translate(text=tf.constant(texts))["translation"].numpy()]
try:
    import tf_transformer
except ImportError:
    guarded = True
else:
    guarded = False
print(json.dumps({
    "guarded": guarded,
    "others": [name for name in sys.modules if name.startswith("tf_transformer.")],
    "beyond_core": sorted(beyond_core),
    "one": run(texts[:1]),
    "all": run(texts),
    "none": run(tf.constant([], tf.string)),
}))
"""


@pytest.fixture(scope="module")
def fresh_process(exported, sentences, tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-I", "-c", FRESH_PROCESS, str(exported)],
        input=json.dumps(["", *sentences]),
        cwd=tmp_path_factory.mktemp("cwd"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_process_without_this_package_translates_the_same(fresh_process, in_memory, sentences):
    assert fresh_process["guarded"]
    assert fresh_process["others"] == []
    assert fresh_process["one"] == [""]
    assert fresh_process["all"] == ["", *in_memory(sentences)]
    assert fresh_process["none"] == []


def test_the_only_ops_beyond_core_tensorflow_are_sentencepiece(fresh_process):
    assert fresh_process["beyond_core"] == [
        "SentencepieceDetokenizeOp",
        "SentencepieceOp",
        "SentencepieceTokenizeOp",
    ]


def test_a_translator_uses_the_weights_of_the_moment(randomise, tokenizer, sentences):
    model = random_model(randomise)
    translate = tt.Translator.from_model(model, tokenizer, tokenizer, MAX_LENGTH)
    before = translate(sentences)
    give_weights(randomise, model, seed=1)
    after = translate(sentences)
    other = random_model(randomise, seed=1)
    expected = tt.Translator.from_model(other, tokenizer, tokenizer, MAX_LENGTH)(sentences)
    assert after == expected
    assert after != before


def test_an_exported_translator_keeps_the_weights_of_its_export(
    randomise, tokenizer, sentences, tmp_path
):
    model = random_model(randomise)
    translate = tt.Translator.from_model(model, tokenizer, tokenizer, MAX_LENGTH)
    before = translate(sentences[:5])
    translate.save(tmp_path / "demo")
    randomise(model, seed=1)
    assert tt.Translator.load(tmp_path / "demo")(sentences[:5]) == before


# --- n in, n out, in order ------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_translations_come_back_in_the_order_of_their_texts(echo, sentences, batch_size):
    assert echo(sentences, batch_size) == sentences


def test_neighbours_and_batch_size_change_no_translation(loaded, sentences):
    alone = [loaded(sentence) for sentence in sentences]
    assert loaded(sentences) == alone
    assert loaded(sentences, batch_size=9) == alone
    assert loaded(sentences[::-1], batch_size=9) == alone[::-1]


@pytest.mark.parametrize("from_disk", [True, False])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_xla_changes_no_translation(exported, in_memory, sentences, beam_size, from_disk):
    module = tt.Translator.load(exported)._module if from_disk else in_memory._module
    plain, compiled = (tt.Translator(module, xla=xla, threads=2) for xla in (False, True))
    # Batches of one, of a power of two, and not; texts that are too long and that are empty.
    for texts in (sentences[:1], sentences[:8], [*sentences[:4], "", "ab " * 200, sentences[9]]):
        expected = plain.n_best(texts, beam_size, 4, beam_size)
        found = compiled.n_best(texts, beam_size, 4, beam_size)
        for these, those in zip(found, expected, strict=True):
            assert [(t.text, t.length, t.truncated) for t in these] == [
                (t.text, t.length, t.truncated) for t in those
            ]
            assert [t.score for t in these] == pytest.approx([t.score for t in those], abs=1e-5)


def test_a_search_of_fixed_size_has_room_for_the_end_of_the_longest(in_memory, sentences):
    module = in_memory._module
    source_ids, limits, _ = module.tokenize(tf.constant(sentences))
    steps = module.fixed_greedy(source_ids, limits, 0.6)["ids"].shape[2]
    assert steps > limits.numpy().max() == MAX_LENGTH


def test_greedy_search_says_of_a_translation_what_a_beam_of_one_does(in_memory, sentences):
    module, texts = in_memory._module, tf.constant(sentences)
    greedy, beam = module.greedy(texts, 0.6), module.beam(texts, 1, 0.6, 1)
    assert {*greedy["truncated"].numpy().ravel()} == {True, False}
    for name, values in greedy.items():
        if values.dtype == tf.float32:
            np.testing.assert_allclose(values, beam[name], atol=1e-4, err_msg=name)
        else:
            assert values.numpy().tolist() == beam[name].numpy().tolist(), name


def test_an_over_long_text_is_cut_and_harms_no_neighbour(echo):
    # MAX_LENGTH - 1 pieces and the end; a letter behind a space is one piece.
    long = "a " * 50_000
    cut = echo(long)
    assert cut == " ".join("a" * (MAX_LENGTH - 1))
    assert echo(["b c", long, "d"]) == ["b c", cut, "d"]


@pytest.mark.parametrize("pieces", [MAX_LENGTH - 2, MAX_LENGTH - 1, MAX_LENGTH])
def test_the_longest_text_that_is_not_cut(echo, pieces):
    text = " ".join("a" * pieces)
    assert (echo(text) == text) == (pieces < MAX_LENGTH)


@pytest.mark.parametrize("text", ["", " ", "\t", " \n ", "\u3000", "\xa0"])
def test_what_has_no_words_has_an_empty_translation(echo, loaded, text):
    for translate in (echo, loaded):
        assert translate(text) == ""
        assert translate([text]) == [""]
    assert echo(["a b", text, "c"]) == ["a b", "", "c"]


def test_nothing_in_nothing_out(echo, loaded):
    assert echo([]) == []
    assert loaded([]) == []
    assert loaded(()) == []


def test_a_str_gives_a_str_and_any_sequence_a_list(echo):
    assert echo("a b") == "a b"
    assert echo(("a b", "c")) == ["a b", "c"]
    assert echo(text for text in ["a b", "c"]) == ["a b", "c"]


@pytest.mark.parametrize("text", ["é", "日本", "🙂", "x\u0301", "«a»", "Z"])
def test_characters_beyond_the_vocabulary_pass_as_bytes(echo, text):
    assert echo(text) == text


def test_a_lone_surrogate_is_replaced(echo):
    assert echo(["a", "\ud800", "b"])[::2] == ["a", "b"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a \xff b", "a \ufffd b"),
        (b"a\xffb", "a\ufffdb"),
        (b"\xc3", "\ufffd"),
        (b"\xf0\x9f\x99 a", "\ufffd a"),
    ],
)
def test_bytes_that_are_not_utf8_are_replaced(echo_model, tokenizer, raw, expected):
    translate = ExportTranslator(echo_model(PIECES), tokenizer, tokenizer, MAX_LENGTH).translate
    translations = translate(text=tf.constant([b"c d", raw, b"e"]))["translation"].numpy()
    assert [text.decode("utf-8") for text in translations] == ["c d", expected, "e"]


def test_bytes_that_the_model_makes_are_always_utf8(echo_model, tokenizer):
    """A model may well emit half a character; the answer is text all the same."""

    class HalfModel(echo_model):
        def decode_step(self, token_ids, index, cache):
            # A first byte of three that never come, then the end.
            half = tokenizer.encode(["€"])[0][-3]
            ids = tf.where(index == 0, half, tokenizer.eos_id)
            return tf.one_hot(tf.fill(tf.shape(token_ids), ids), PIECES), cache

    assert tokenizer.pieces([tokenizer.encode(["€"])[0][-3]]) == ["<0xE2>"]
    translate = tt.Translator.from_model(HalfModel(PIECES), tokenizer, tokenizer, MAX_LENGTH)
    assert translate("a") == "\ufffd"


# --- What is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "named"),
    [(["a", None], "item 1 is NoneType"), ([b"a"], "item 0 is bytes"), (["a", ["b"]], "1 is list")],
)
def test_what_is_no_text_is_refused_by_name(echo, texts, named):
    with pytest.raises(TypeError, match=named):
        echo(texts)


@pytest.mark.parametrize("texts", [b"a b", None, 3])
def test_what_is_neither_text_nor_list_is_refused(echo, texts):
    with pytest.raises(TypeError):
        echo(texts)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_of_nothing_is_refused(echo, batch_size):
    with pytest.raises(ValueError, match=f"received batch_size={batch_size}"):
        echo(["a"], batch_size)


@pytest.mark.parametrize("max_length", [1, 0, -5])
def test_a_max_length_without_room_is_refused(echo_model, tokenizer, max_length):
    with pytest.raises(ValueError, match=f"received max_length={max_length}"):
        tt.Translator.from_model(echo_model(PIECES), tokenizer, tokenizer, max_length)


def test_a_translator_from_disk_is_not_saved_again(loaded, tmp_path):
    with pytest.raises(ExportError, match="copy that folder"):
        loaded.save(tmp_path / "demo")
    assert list(tmp_path.iterdir()) == []


def test_another_saved_model_is_refused(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "1"))
    with pytest.raises(ExportError, match="no translator"):
        tt.Translator.load(tmp_path)


def junk(path):
    path.write_bytes(b"junk" * 10)


def half(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    "name",
    ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"],
)
@pytest.mark.parametrize("damage", [junk, half, pathlib.Path.unlink])
def test_a_damaged_saved_model_is_named_in_a_line(exported, tmp_path, name, damage):
    folder = tmp_path / "damaged"
    shutil.copytree(exported, folder)
    damage(folder / name)
    with pytest.raises(ExportError) as caught:
        tt.Translator.load(folder)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{folder}: ")
    assert "tf-transformer export" in line
    assert "b'" not in line


# --- The file -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph(exported):
    content = saved_model_pb2.SavedModel.FromString((exported / "saved_model.pb").read_bytes())
    (meta_graph,) = content.meta_graphs
    return meta_graph


def test_the_signature_is_text_to_translation(graph):
    signature = graph.signature_def["serving_default"]
    names = {"serving_default", "translate_nbest"}
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
    assert not [op for op in ops if op.startswith("Xla") or "PyFunc" in op]
    for holder in [*nodes, *functions]:
        assert not holder.attr["_XlaMustCompile"].b
        assert not holder.attr["_xla_compile_id"].s


def test_assets_hold_the_manifest(echo, tmp_path):
    manifest = {"scores": {"val_bleu": 12.5}, "name": "Übung"}
    path = echo.save(tmp_path / "demo", manifest=manifest)
    text = (path / "assets.extra" / "tf_transformer.json").read_text(encoding="utf-8")
    assert json.loads(text) == manifest
    assert "Übung" in text, "readable, not escaped"


def test_no_dropout_is_left_in_the_graph(graph):
    names = {f.signature.name for f in graph.graph_def.library.function}
    ops = {node.op for f in graph.graph_def.library.function for node in f.node_def} - names
    assert not [op for op in ops if "Random" in op]


# --- Versions -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "saved_models" / "demo"


@pytest.fixture
def quick_save(monkeypatch):
    """Saves a file that says which, in place of a graph: what is tested is the folders."""

    def save(translator, path, signatures):
        assert set(signatures) == {"serving_default"}
        target = tf.io.gfile.join(path, "saved_model.pb")
        tf.io.gfile.makedirs(path)
        with open(target, "w", encoding="utf-8") as file:
            file.write(translator.name)

    monkeypatch.setattr(saved_model.tf.saved_model, "save", save)


def translator_named(name):
    module = tf.Module(name)
    module.signatures = lambda: {"serving_default": None}
    return module


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def content(folder, version):
    return (folder / str(version) / "saved_model.pb").read_text(encoding="utf-8")


def test_versions_count_up_from_the_highest(folder, quick_save):
    paths = [write_saved_model(translator_named("a"), folder, version) for version in (None, 9)]
    paths += [write_saved_model(translator_named("a"), folder) for _ in range(2)]
    assert paths == [folder / "1", folder / "9", folder / "10", folder / "11"]
    assert names_in(folder) == ["1", "10", "11", "9"], "and nothing beside them"
    assert find_saved_model(folder) == folder / "11"


def test_a_folder_of_another_format_is_refused(folder, quick_save):
    (folder / "4").mkdir(parents=True)
    (folder / "4" / "model.bin").write_bytes(b"")
    with pytest.raises(ExportError, match=r"holds CTranslate2 models\. Give another"):
        write_saved_model(translator_named("a"), folder)
    with pytest.raises(ExportError, match="holds a CTranslate2 model"):
        find_saved_model(folder)


def test_a_file_is_no_folder_of_versions(folder, quick_save):
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("mine")
    with pytest.raises(ExportError, match=r"is a file\. Give a folder"):
        write_saved_model(translator_named("a"), folder)
    assert folder.read_text() == "mine"


@pytest.mark.parametrize(
    ("beam_size", "alpha"), [(0, 0.6), (PIECES + 1, 0.6), (2000, 0.6), (4, -1)]
)
def test_a_search_that_cannot_be_is_refused_before_it_is_exported(
    echo_model, tokenizer, beam_size, alpha
):
    with pytest.raises(ValueError, match=r"from 1 to 280, the vocabulary|from 0 to 10"):
        tt.Translator.from_model(
            echo_model(PIECES), tokenizer, tokenizer, MAX_LENGTH, beam_size, alpha
        )


def test_a_model_whose_weights_are_no_numbers_is_named(randomise, tokenizer):
    model = random_model(randomise)
    model.set_weights([weight * float("nan") for weight in model.get_weights()])
    translator = tt.Translator.from_model(model, tokenizer, tokenizer, MAX_LENGTH)
    with pytest.raises(ValueError, match="weights are not all numbers"):
        translator("a b")


@pytest.mark.parametrize("texts", ["a b", b"a b", None, 3])
@pytest.mark.parametrize("method", ["n_best", "stream"])
def test_a_str_is_no_list_of_texts(echo, method, texts):
    with pytest.raises(TypeError, match="texts must be a list of str; received"):
        getattr(echo, method)(texts, 1)


def test_a_version_that_exists_is_refused(folder, quick_save):
    write_saved_model(translator_named("old"), folder, version=2)
    with pytest.raises(ExportError, match=r"--overwrite") as caught:
        write_saved_model(translator_named("new"), folder, version=2)
    assert str(folder / "2") in str(caught.value)
    assert content(folder, 2) == "old"
    assert names_in(folder) == ["2"]


def test_a_version_is_overwritten_when_told(folder, quick_save):
    write_saved_model(translator_named("old"), folder, version=2)
    write_saved_model(translator_named("new"), folder, version=2, overwrite=True)
    assert content(folder, 2) == "new"
    assert names_in(folder) == ["2"]


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_below_one_is_refused(folder, quick_save, version):
    with pytest.raises(ExportError, match=f"received version={version}"):
        write_saved_model(translator_named("a"), folder, version)
    assert not folder.exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("partly", [False, True])
def test_a_failing_save_leaves_nothing_behind(folder, quick_save, monkeypatch, overwrite, partly):
    write_saved_model(translator_named("old"), folder, version=1)
    good_save = tf.saved_model.save

    def fail(*arguments, **options):
        if partly:
            good_save(*arguments, **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_model.tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="No space"):
        write_saved_model(
            translator_named("new"), folder, version=1 if overwrite else None, overwrite=overwrite
        )
    assert names_in(folder) == ["1"]
    assert content(folder, 1) == "old"


def test_a_manifest_that_is_not_json_leaves_nothing_behind(folder, quick_save):
    write_saved_model(translator_named("old"), folder)
    with pytest.raises(TypeError):
        write_saved_model(translator_named("new"), folder, manifest={"model": object()})
    assert names_in(folder) == ["1"]


def test_a_failing_first_save_leaves_no_folder(folder, quick_save, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_model.tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="No space"):
        write_saved_model(translator_named("new"), folder)
    assert not folder.exists() or names_in(folder) == []


def make_version(folder, name):
    (folder / name).mkdir(parents=True)
    (folder / name / "saved_model.pb").write_bytes(b"")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["9", "10"], "10"),
        (["2", "1"], "2"),
        (["1", "backup", ".writing-3-ab", "2.5", "-7"], "1"),
    ],
)
def test_the_highest_number_is_found(folder, names, expected):
    for name in names:
        make_version(folder, name)
    assert find_saved_model(folder) == folder / expected
    assert find_saved_model(str(folder / expected)) == folder / expected


def test_a_number_without_a_saved_model_is_passed_over(folder):
    make_version(folder, "1")
    (folder / "2").mkdir()
    assert find_saved_model(folder) == folder / "1"


def test_where_there_is_none_the_command_that_makes_one_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    for path in (tmp_path, tmp_path / "missing", file):
        with pytest.raises(ExportError, match="tf-transformer export") as caught:
            tt.Translator.load(path)
        assert str(path) in str(caught.value)
