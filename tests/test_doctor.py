"""`tf-transformer doctor`: a sound SavedModel passes, and each kind of damage is a clear line."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import tensorflow as tf
from commands import assert_refused, run
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from tf_transformer import cli
from tf_transformer.export.manifest import EXTRA, MANIFEST, write_manifest
from tf_transformer.export.tf_serving import WARM_UP, write_version_files
from tf_transformer.serving.doctor import clean_process, doctor, environment, ops

TEXT = tf.TensorSpec([None], tf.string, name="text")


class Upper(tf.Module):
    """A small SavedModel with what can be damaged: a variable, an asset, a signature."""

    def __init__(self, vocabulary):
        self.suffix = tf.Variable("!")
        table = tf.lookup.TextFileInitializer(
            vocabulary, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )  # fmt: skip
        self.table = tf.lookup.StaticHashTable(table, -1)

    @tf.function(input_signature=[TEXT])
    def translate(self, text):
        tf.debugging.assert_none_equal(text, "fail", message="it fails")
        known = tf.strings.as_string(self.table.lookup(text))
        return {"translation": tf.strings.upper(text) + known + self.suffix}


@pytest.fixture(scope="module")
def upper(tmp_path_factory):
    """A sound version of that SavedModel, which tests copy."""
    root = tmp_path_factory.mktemp("upper")
    (root / "vocabulary.txt").write_text("one\ntwo\n", encoding="utf-8")
    module = Upper(str(root / "vocabulary.txt"))
    tf.saved_model.save(module, str(root / "1"), signatures={"serving_default": module.translate})
    write_version_files(root / "1")
    write_manifest(root / "1", None, EXTRA)
    return root / "1"


@pytest.fixture
def version(upper, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(upper, tmp_path / "1")


@pytest.fixture
def here(monkeypatch):
    """Lets the clean process be this one, which takes a tenth of the time."""

    def check_in_this_process(folder):
        return map(doctor.check_of, clean_process.checks(folder and str(folder)))

    monkeypatch.setattr(doctor, "check_in_clean_process", check_in_this_process)
    monkeypatch.setattr(clean_process, "_SECONDS", 0)


def failures(folder):
    """The messages of the checks that failed, by name."""
    found = {}
    for check in doctor.diagnose(folder):
        assert "\n" not in check.message and "Traceback" not in check.message
        assert len(check.message) < 700
        if check.status == "FAIL":
            found.setdefault(check.name, []).append(check.message)
    return found


def change_graph(folder, change):
    path = folder / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(saved_model.meta_graphs[0])
    path.write_bytes(saved_model.SerializeToString())


def add_node(nodes, op, **types):
    node = nodes.add(name=f"added_{op}", op=op)
    for name, dtype in types.items():
        node.attr[name].type = dtype.as_datatype_enum
    return node


# A sound model

NAMES = [
    "python", "machine", "packages", "tensorflow", "files", "assets", "ops", "xla", "session",
    "variables", "warm-up", "signatures", "latency", "memory",
]  # fmt: skip


def test_a_translator_passes_all_checks(exported_version, here):
    checks = {check.name: check for check in doctor.diagnose(exported_version)}
    assert {check.status for check in checks.values()} == {"ok"}
    assert list(checks) == NAMES
    assert checks["ops"].values["ops"] > 50
    signatures = {"serving_default", "translate_nbest"}
    assert signatures <= set(checks["signatures"].values["signatures"])
    assert checks["warm-up"].values["records"] >= 8 * len(signatures)


def test_the_report_has_what_was_measured(upper):
    """As the command prints it, with the processes that it really starts."""
    done = run("doctor", upper, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert (report["saved_model"], report["failed"]) == (str(upper), 0)
    assert [check["name"] for check in report["checks"]] == NAMES
    values = {check["name"]: check for check in report["checks"]}
    assert values["packages"]["versions"]["tensorflow"] == tf.__version__
    assert values["ops"]["server"] == "TensorFlow Serving 2.20"
    assert values["latency"]["milliseconds"].keys() == {"1", "32"}
    assert all(number > 0 for number in values["latency"]["milliseconds"].values())
    memory = values["memory"]
    assert 0 < memory["without_model_bytes"] < memory["resident_bytes"] <= memory["peak_bytes"]


def test_the_command_prints_a_line_for_each_check(upper, here, capfd):
    assert cli.main(["doctor", str(upper.parent)]) == 0
    *lines, last = capfd.readouterr().out.splitlines()
    assert last == "Nothing failed."
    assert [line[6:16].strip() for line in lines] == NAMES
    # Names and messages stand one below the other.
    assert {(line[:6], line[16:18]) for line in lines} == {("ok    ", "  ")}
    assert all(line[18] != " " for line in lines)


def test_without_a_model_only_the_installation_is_checked(here, capfd):
    assert cli.main(["doctor"]) == 0
    names = [line.split()[1] for line in capfd.readouterr().out.splitlines()[:-1]]
    assert names == ["python", "machine", "packages", "tensorflow"]


# Damage, of which each has its line, and the checks after it still run


def test_several_kinds_of_damage_are_all_found(version, here, capfd):
    def change(meta_graph):
        add_node(meta_graph.graph_def.node, "VarHandleOp", dtype=tf.float32).attr[
            "shape"
        ].shape.dim.add(size=1)
        body = next(
            f for f in meta_graph.graph_def.library.function if "translate" in f.signature.name
        )
        body.node_def.add(name="added", op="PyFunc").attr["token"].s = b"x"
        body.node_def[-1].attr["Tin"].list.SetInParent()
        body.node_def[-1].attr["Tout"].list.type.append(tf.int32.as_datatype_enum)

    change_graph(version, change)
    with tf.io.TFRecordWriter(str(version / EXTRA / WARM_UP)) as writer:
        writer.write(b"no PredictionLog")
    found = failures(version)
    assert found.keys() == {"files"}, "what was changed is not run"
    changed, warm_up = sorted(found["files"], reverse=True)
    assert "saved_model.pb" in changed and "SHA-256" in changed and "export it again" in changed
    assert WARM_UP in warm_up
    (version / EXTRA / MANIFEST).unlink()
    found = failures(version)
    assert found.keys() == {"files", "ops", "variables", "warm-up"}
    (line,) = found["ops"]
    assert (
        "TensorFlow Serving 2.20 does not have the op PyFunc, which serving_default needs" in line
    )
    (line,) = found["variables"]
    assert line.startswith("added_VarHandleOp has no value after restoring")
    (line,) = found["warm-up"]
    assert line.startswith("record 1: ") and "server does not load" in line
    # The same as the command prints it.
    assert cli.main(["doctor", str(version)]) == 1
    *lines, last = capfd.readouterr().out.splitlines()
    assert last == "4 failed."
    assert sum(line.startswith("FAIL") for line in lines) == 4


def flip_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            lambda folder: (folder / "assets" / "vocabulary.txt").unlink(),
            {
                "files": ["assets/vocabulary.txt: is missing"],
                "assets": ["assets/vocabulary.txt is missing"],
                "session": ["does not load: .*vocabulary.txt"],
            },
        ),
        (
            lambda folder: (folder / "variables" / "variables.index").unlink(),
            {"files": ["variables.index: is missing"], "session": ["does not load: "]},
        ),
        (
            lambda folder: flip_byte(folder / "variables" / "variables.index"),
            {"files": ["variables.index: was changed"], "session": ["does not load: "]},
        ),
        (
            lambda folder: flip_byte(folder / "assets" / "vocabulary.txt"),
            {"files": ["vocabulary.txt: was changed after the export"]},
        ),
        (
            lambda folder: (folder / "assets" / "more.txt").write_text("x"),
            {"files": ["more.txt: was not there"]},
        ),
        (
            lambda folder: (folder / "saved_model.pb").write_bytes(b"x"),
            {"files": ["saved_model.pb: was changed"], "graph": ["cannot be read"],
             "session": ["does not load: "]},
        ),
        (
            lambda folder: change_graph(folder, lambda m: add_node(m.graph_def.node, "NoSuchOp")),
            {"files": ["saved_model.pb"], "ops": ["NoSuchOp, which the graph itself needs"],
             "session": ["does not load: .*NoSuchOp"]},
        ),
        (
            lambda folder: change_graph(
                folder, lambda m: add_node(m.graph_def.node, "XlaReplicaId")
            ),
            {"files": ["saved_model.pb"], "ops": ["XlaReplicaId"],
             "xla": ["has the op XlaReplicaId, and .* runs nothing of XLA"]},
        ),
        (
            lambda folder: (folder / EXTRA / MANIFEST).unlink(),
            {"files": ["has no manifest"]},
        ),
        (
            lambda folder: flip_byte(folder / EXTRA / WARM_UP),
            {"files": [WARM_UP], "warm-up": [f"{WARM_UP} cannot be read: .*export it again"]},
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_damage_is_a_line(version, here, damage, expected):
    damage(version)
    found = failures(version)
    assert found.keys() == {"files"}, "what was changed is not run"
    (version / EXTRA / MANIFEST).unlink(missing_ok=True)
    without_manifest = failures(version)
    assert without_manifest.keys() == expected.keys()
    found = {**without_manifest, **found}
    for name, patterns in expected.items():
        assert len(found[name]) == len(patterns)
        for message, pattern in zip(found[name], patterns, strict=True):
            assert re.search(pattern, message), message


def record(signature="serving_default", **inputs):
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.model_spec.signature_name = signature
    for name, value in inputs.items():
        log.predict_log.request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return log.SerializeToString()


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record(text=["a"]), b"\xff\xff"], "record 2: "),
        ([record(text=["a"]), b""], "record 2: is no request to predict"),
        ([record("nothing", text=["a"])], "record 1: asks for the signature 'nothing'"),
        ([record(text=[1])], "record 1: gives {'text': 'int32'} to serving_default"),
        ([record(texts=["a"])], "{'texts': 'string'}"),
        ([record()], "gives {} to"),
        ([record(text="a")], "record 1: "),
        ([record(text=["a", "fail"])], "record 1: assertion failed: [it fails]"),
        ([record(text=["a"])] * 1001, "1,001 records are more than 1,000"),
    ],
    ids=range(9),
)
def test_a_bad_warm_up_record_is_a_line(version, here, records, words):
    with tf.io.TFRecordWriter(str(version / EXTRA / WARM_UP)) as writer:
        for content in records:
            writer.write(content)
    write_manifest(version, None, EXTRA)
    found = failures(version)
    assert found.keys() == {"warm-up"}
    (line,) = found["warm-up"]
    assert words in line
    assert line.endswith("export it again.")


def test_a_signature_without_a_record_is_a_note(version, here):
    (version / EXTRA / WARM_UP).unlink()
    write_manifest(version, None, EXTRA)
    notes = [check for check in doctor.diagnose(version) if check.status != "ok"]
    assert [(check.name, check.status) for check in notes] == [("warm-up", "note")]


@pytest.mark.parametrize(
    ("translate", "words"),
    [
        (lambda text: text[1:], "7 rows in, but translation has the shape (6,)"),
        (lambda text: text + b"\xff", "translation holds text that is not UTF-8"),
        (lambda text: tf.ones_like(text, tf.float32) / 0, "numbers that are not finite"),
        (lambda text: tf.size(text), "translation has no axis for the batch"),
        (lambda text: tf.ensure_shape(text, [1]), "serving_default does not run: "),
    ],
    ids=range(5),
)
def test_a_signature_with_bad_outputs_is_a_line(tmp_path, here, translate, words):
    module = tf.Module()
    module.translate = tf.function(lambda text: {"translation": translate(text)}, [TEXT])
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.translate})
    write_manifest(tmp_path, None, EXTRA)
    found = failures(tmp_path)
    assert words in " ".join(found.pop("signatures"))
    assert found.keys() <= {"latency"}


def test_a_function_that_xla_must_compile_is_a_line(tmp_path, here):
    module = tf.Module()
    square = tf.function(lambda x: x * x, jit_compile=True)
    module.translate = tf.function(lambda text: {"length": square(tf.strings.length(text))}, [TEXT])
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.translate})
    (line,) = failures(tmp_path)["xla"]
    assert "serving_default has a function with jit_compile=True" in line


# The installation


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"tensorflow-text": "2.20.1"}, ["tensorflow-text 2.20.1", "'tensorflow-text==2.21.*'"]),
        (
            {"tensorflow-text": "2.21.0"},
            ["2.21.0 does not load", "'tensorflow-text>=2.21.1,<2.22'"],
        ),
        ({"tensorflow-text": None}, ["needs tensorflow-text, which is not installed"]),
        (
            {"keras": "3.10.0"},
            ["tf_transformer", "and 3.10.0 is installed", "pip install 'keras<4"],
        ),
        ({"keras": "2.15.0"}, ["2.15.0 is installed"]),
        (
            {"protobuf": "5.29.1"},
            ["tensorflow 2.21", "5.29.1 is installed", "pip install 'protobuf"],
        ),
        ({"numpy": "1.24.0"}, ["1.24.0 is installed"]),
        ({"tf-nightly": "2.22.0.dev1"}, ["tensorflow and tf-nightly overwrite each other's files"]),
        ({"ctranslate2": "3.0"}, ["needs ctranslate2", "3.0 is installed"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_clash_is_a_line_with_its_remedy(monkeypatch, here, capfd, versions, words):
    original = environment.installed_version
    monkeypatch.setattr(
        environment,
        "installed_version",
        lambda name: versions[name] if name in versions else original(name),
    )
    assert cli.main(["doctor"]) == 1
    out = capfd.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith("FAIL"))
    for word in words:
        assert word in line
    assert "pip" in line


def test_an_optional_package_may_be_missing():
    missing = {"ctranslate2", "starlette", "matplotlib"}
    assert (
        environment.clashes(
            lambda name: None if name in missing else environment.installed_version(name)
        )
        == []
    )


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        ("raise ImportError('no such symbol')", "tensorflow", "does not load: no such symbol."),
        ("import tf_transformer", "tensorflow", "import of tf_transformer halted"),
        ("import os\nos.kill(os.getpid(), 9)", "process", "want of memory"),
        ("import os\nos.kill(os.getpid(), 4)", "process", "the processor lacks instructions"),
        ("import sys\nprint('{')\nsys.exit('torn')", "process", "It said last: torn"),
    ],
    ids=range(5),
)
def test_a_tensorflow_that_does_not_load_is_a_line(
    monkeypatch, tmp_path, upper, source, name, words
):
    """In a process of its own, whose death must not be that of the doctor."""
    (tmp_path / "tensorflow.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (line,) = failures(upper)[name]
    assert words in line


# The list of ops


def test_the_list_of_ops_is_that_of_a_server():
    served = ops.served_ops()
    assert 1300 < len(served) < 1400
    assert {"SentencepieceTokenizeOp", "StatelessWhile", "StaticRegexReplace"} <= served
    assert not {"PyFunc", "EagerPyFunc", "XlaDynamicUpdateSlice", "TPUExecute"} & served


def test_the_wheel_has_the_list_of_ops():
    with (pathlib.Path(__file__).parents[1] / "pyproject.toml").open("rb") as file:
        package_data = tomllib.load(file)["tool"]["setuptools"]["package-data"]
    assert "tf_serving_2.20_ops.txt" in package_data["tf_transformer.serving.doctor"]


def test_functions_of_no_signature_are_in_no_part(exported_version):
    content = (exported_version / "saved_model.pb").read_bytes()
    meta_graph = saved_model_pb2.SavedModel.FromString(content).meta_graphs[0]
    parts = ops.nodes_by_part(meta_graph)
    assert {"serving_default", "restoring", "initialization", "the graph itself"} <= parts.keys()
    assert "RestoreV2" in {node.op for node in parts["restoring"]}
    # In the body of the loop in a function of the signature.
    assert "BatchMatMulV2" in {node.op for node in parts["serving_default"]}
    # The model counts how many functions it calls; `fixed_beam` is called by none.
    functions = {f.signature.name: f for f in meta_graph.graph_def.library.function}
    (fixed,) = (f for name, f in functions.items() if "fixed_beam" in name)
    add_node(fixed.node_def, "XlaReplicaId")
    assert ops.needing_xla(ops.nodes_by_part(meta_graph)) == []
    (called,) = (
        f for name, f in functions.items() if "translate_nbest" in name and "wrapper" not in name
    )
    add_node(called.node_def, "XlaReplicaId")
    (line,) = ops.needing_xla(ops.nodes_by_part(meta_graph))
    assert line.startswith("translate_nbest has the op XlaReplicaId")


# Options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--same-as=run"], ["--same-as needs SAVED_MODEL and --source"]),
        (["model", "--same-as=run"], ["--same-as needs SAVED_MODEL and --source"]),
        (["model", "--source=x"], ["--source needs --same-as"]),
        (["model", "--reference=x"], ["--reference needs --source"]),
        (["--max-different=2"], ["from 0 to 1, not '2'"]),
        (["--max-bleu-difference=-1"], ["from 0 to 100, not '-1'"]),
        (["missing"], ["missing: no SavedModel there"]),
        (["missing", "two"], ["unrecognized|unknown"]),
    ],
    ids=str,
)
def test_options_are_checked(arguments, words, capfd, tmp_path):
    assert_refused(["doctor", *arguments], words, capfd, tmp_path)


def test_options_are_checked_without_tensorflow(tmp_path):
    code = (
        "import sys; from tf_transformer import cli; "
        f"cli.main(['doctor', {str(tmp_path)!r}]); sys.exit('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "no SavedModel there" in done.stderr


def test_a_higher_version_without_a_savedmodel_fails(version, capfd):
    """A server would take it."""
    (version.parent / "2").mkdir()
    assert cli.main(["doctor", str(version.parent)]) == 1
    failed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 1 and "/2: a server takes this version" in failed[0]
    assert cli.main(["doctor", str(version)]) == 0, "one version was asked for"
