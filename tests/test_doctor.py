"""`tf-transformer doctor`: a sound SavedModel passes, and each kind of damage is a clear line."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf
from commands import assert_refused, run
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from tf_transformer import cli
from tf_transformer.export.manifest import EXTRA, MANIFEST, write_manifest
from tf_transformer.export.tf_serving import WARM_UP, write_version_files
from tf_transformer.serving import doctor

TEXT = tf.TensorSpec([None], tf.string, name="text")
NAMES = ["python", "files", "tensorflow", "session", "warm-up", "signatures"]


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
    monkeypatch.setattr(doctor, "_in_clean_process", doctor.check_session)


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


def test_a_translator_passes_all_checks(exported_version, here):
    checks = {check.name: check for check in doctor.diagnose(exported_version)}
    assert {check.status for check in checks.values()} == {"ok"}
    assert list(checks) == NAMES
    assert "translate_nbest" in checks["signatures"].message


def test_the_command_with_its_clean_process(upper):
    done = run("doctor", upper, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert (report["saved_model"], report["failed"]) == (str(upper), 0)
    assert [check["name"] for check in report["checks"]] == NAMES
    assert {check["status"] for check in report["checks"]} == {"ok"}


def test_the_command_prints_a_line_for_each_check(upper, here, capfd):
    assert cli.main(["doctor", str(upper.parent)]) == 0
    *lines, last = capfd.readouterr().out.splitlines()
    assert last == "Nothing failed."
    assert [line[6:16].strip() for line in lines] == NAMES
    assert cli.main(["doctor"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 3


def test_what_imports_the_package_fails(tmp_path, upper, monkeypatch):
    """In the process, nothing of the exporter can help a SavedModel."""
    source = "import importlib.util, sys\nimport tf_transformer"
    (tmp_path / "tensorflow.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (line,) = failures(upper)["tensorflow"]
    assert "import of tf_transformer halted" in line


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        ("raise ImportError('no such symbol')", "tensorflow", "does not load: no such symbol."),
        ("import os\nos.kill(os.getpid(), 9)", "process", "the memory was full"),
        ("import os\nos.kill(os.getpid(), 4)", "process", "the processor lacks instructions"),
        ("import sys\nprint('{')\nsys.exit('torn')", "process", "it said last: torn"),
    ],
    ids=range(4),
)
def test_a_tensorflow_that_does_not_load_is_a_line(
    monkeypatch, tmp_path, upper, source, name, words
):
    (tmp_path / "tensorflow.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (line,) = failures(upper)[name]
    assert words in line


# Damage


def flip_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "file", "others"),
    [
        (
            lambda folder: (folder / "assets" / "vocabulary.txt").unlink(),
            "assets/vocabulary.txt: is missing",
            {"session": "does not load: .*vocabulary.txt"},
        ),
        (
            lambda folder: flip_byte(folder / "variables" / "variables.index"),
            "variables.index: was changed",
            {"session": "does not load: "},
        ),
        (lambda folder: flip_byte(folder / "assets" / "vocabulary.txt"), "was changed after", {}),
        (lambda folder: (folder / "assets" / "more.txt").write_text("x"), "was not there", {}),
        (
            lambda folder: (folder / "saved_model.pb").write_bytes(b"x"),
            "saved_model.pb: was changed",
            {"session": "does not load: "},
        ),
        (
            lambda folder: change_graph(
                folder, lambda m: m.graph_def.node.add(name="x", op="NoSuchOp")
            ),
            "saved_model.pb",
            {"session": "does not load: .*NoSuchOp"},
        ),
        (
            lambda folder: flip_byte(folder / EXTRA / WARM_UP),
            WARM_UP,
            {"warm-up": "does not load such a model: export it again"},
        ),
    ],
    ids=range(7),
)
def test_damage_is_a_line(version, here, damage, file, others):
    damage(version)
    found = failures(version)
    assert found.keys() == {"files"}, "what was changed is not run"
    assert file in found["files"][0]
    (version / EXTRA / MANIFEST).unlink()
    found = failures(version)
    assert found.keys() == {"files", *others}
    for name, pattern in others.items():
        (message,) = found[name]
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
        ([record(text=["a"]), b"\xff\xff"], "Error parsing"),
        ([record(text=["a"]), b""], "record 2 gives {} to"),
        ([record("nothing", text=["a"])], "record 1 asks for the unknown signature 'nothing'"),
        ([record(text=[1])], "record 1 gives {'text': 'int32'} to serving_default"),
        ([record(texts=["a"])], "{'texts': 'string'}"),
        ([record(text=["a", "fail"])], "assertion failed: [it fails]"),
        ([record(text=["a"])] * 1001, "more than 1,000 warm-up records"),
    ],
    ids=range(7),
)
def test_a_bad_warm_up_record_is_a_line(version, here, records, words):
    with tf.io.TFRecordWriter(str(version / EXTRA / WARM_UP)) as writer:
        for content in records:
            writer.write(content)
    write_manifest(version, None, EXTRA)
    found = failures(version)
    assert found.keys() == {"warm-up"}
    assert words in found["warm-up"][0]


def test_a_model_without_records_is_a_note(version, here):
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
        (lambda text: tf.ensure_shape(text, [1]), "serving_default: it does not run: "),
    ],
    ids=range(5),
)
def test_a_signature_with_bad_outputs_is_a_line(tmp_path, here, translate, words):
    module = tf.Module()
    module.translate = tf.function(lambda text: {"translation": translate(text)}, [TEXT])
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.translate})
    write_manifest(tmp_path, None, EXTRA)
    found = failures(tmp_path)
    assert found.keys() == {"signatures"}
    assert words in " ".join(found["signatures"])


# Options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--same-as=run"], ["--same-as needs SAVED_MODEL and --source"]),
        (["model", "--same-as=run"], ["--same-as needs SAVED_MODEL and --source"]),
        (["model", "--source=x"], ["--same-as needs SAVED_MODEL and --source"]),
        (["model", "--reference=x"], ["--reference needs --source"]),
        (["--max-different=x"], ["--max-different", "'x'"]),
        (["missing"], ["missing: no SavedModel there"]),
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


def test_a_higher_version_without_a_savedmodel_fails(version, here, capfd):
    """A server would take it."""
    (version.parent / "2").mkdir()
    assert cli.main(["doctor", str(version.parent)]) == 1
    failed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 1 and "/2: a server takes this version" in failed[0]
    assert cli.main(["doctor", str(version)]) == 0, "one version was asked for"
