"""`tf-transformer doctor`: what is sound passes, and damage and differences are clear lines."""

import pathlib
import re
import shutil
import sys

import pytest
import tensorflow as tf
from commands import assert_refused, run_here
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from tf_transformer import cli
from tf_transformer.export.manifest import EXTRA, MANIFEST, write_manifest
from tf_transformer.export.tf_serving import WARM_UP, write_version_files
from tf_transformer.serving import checks

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
    write_version_files(root / "1", {"serving_default": module.translate})
    write_manifest(root / "1", None, EXTRA)
    return root / "1"


@pytest.fixture
def version(upper, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(upper, tmp_path / "1")


@pytest.fixture
def here(monkeypatch):
    """Lets the clean process be this one, which takes a tenth of the time."""
    monkeypatch.setattr(checks, "_in_clean_process", checks.check_session)


def failures(folder):
    """The messages of the checks that failed, by name."""
    found = {}
    for check in checks.diagnose(folder):
        assert "\n" not in check.message and "Traceback" not in check.message
        assert len(check.message) < 700
        if check.status == "FAIL":
            found.setdefault(check.name, []).append(check.message)
    return found


def test_a_translator_passes_all_checks_of_the_command(exported_version):
    done = run_here("doctor", exported_version)
    assert done.stderr == ""
    *lines, last = done.stdout.splitlines()
    checks = [re.fullmatch(r"ok    ([a-z-]+) +(.*)", line).groups() for line in lines]
    names = ["python", "files", "tensorflow", "session", "warm-up", "signatures"]
    assert ([name for name, _ in checks], last) == (names, "Nothing failed.")
    assert "translate_nbest" in checks[-1][1]


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        # In the process, nothing of the exporter can help a SavedModel.
        ("import importlib.util\nimport tf_transformer", "tensorflow", "import of tf_transformer"),
        ("import os\nos.kill(os.getpid(), 4)", "process", "SIGILL"),
        ("import sys\nprint('{')\nsys.exit('torn')", "process", "It said last: torn"),
    ],
    ids=["package", "signal", "exit"],
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


def add_operation(path):
    saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    saved_model.meta_graphs[0].graph_def.node.add(name="x", op="NoSuchOp")
    path.write_bytes(saved_model.SerializeToString())


DAMAGE = {  # what is done to a file, and the check that fails then, if the file may be so
    "assets/vocabulary.txt": (pathlib.Path.unlink, "session", "does not load or run: .*vocab"),
    "variables/variables.index": (flip_byte, "session", "does not load or run: "),
    "saved_model.pb": (add_operation, "session", "does not load or run: .*NoSuchOp"),
    f"{EXTRA}/{WARM_UP}": (flip_byte, "warm-up", "does not load such a model: export it again"),
}


@pytest.mark.parametrize("file", DAMAGE)
def test_damage_is_a_line(version, here, file):
    damage, name, pattern = DAMAGE[file]
    damage(version / file)
    found = failures(version)
    assert found.keys() == {"files"}, "what was changed is not run"
    assert f"{file}: " in found["files"][0]
    (version / EXTRA / MANIFEST).unlink()
    found = failures(version)
    assert found.keys() == {"files", name}
    assert re.search(pattern, *found[name])


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
        ([record("", text=["a"]), record("nothing", text=["a"])], "KeyError: 'nothing'"),
        ([record(text=[1])], "Unsupported object type int"),
        ([record(text=["a", "fail"])], "assertion failed: [it fails]"),
    ],
    ids=range(4),
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
    notes = [check for check in checks.diagnose(version) if check.status != "ok"]
    assert [(check.name, check.status) for check in notes] == [("warm-up", "note")]


@pytest.mark.parametrize(
    ("translate", "words"),
    [
        (lambda text: tf.ones_like(text, tf.float32) / 0, "numbers that are not finite"),
        (lambda text: tf.ensure_shape(text, [1]), "serving_default: it does not run: "),
    ],
    ids=range(2),
)
def test_a_signature_with_bad_outputs_is_a_line(tmp_path, here, translate, words):
    module = tf.Module()
    module.translate = tf.function(lambda text: {"translation": translate(text)}, [TEXT])
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.translate})
    write_manifest(tmp_path, None, EXTRA)
    found = failures(tmp_path)
    assert found.keys() == {"signatures"}
    assert words in " ".join(found["signatures"])


def test_the_version_that_a_server_would_take_is_checked(version, here, capfd):
    (version.parent / "002").mkdir()
    assert cli.main(["doctor", str(version.parent)]) == 1
    failed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 1 and "/002: a server takes this version" in failed[0]
    shutil.copytree(version, version.parent / "002", dirs_exist_ok=True)
    assert cli.main(["doctor", str(version.parent)]) == 0
    assert f"all in {version.parent / '002'} are" in capfd.readouterr().out
    (version.parent / "2").mkdir()
    words = ["002 and 2 are the same version"]
    assert_refused(["doctor", version.parent], words, capfd, version.parent)
    assert cli.main(["doctor", str(version)]) == 0, "one version was asked for"
