"""One SavedModel gives the same translations in every way to run it without this package.

A graph session is compared in `test_saved_model.py`, the server and its client in `test_server.py`.
"""

import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf
from commands import last_json, run_python

import tf_transformer as tt
from tf_transformer.serving.session import SavedModelSession

C_PROGRAM = pathlib.Path(__file__).with_name("translate.c")


@pytest.fixture(scope="module")
def model(exported_version):
    return pathlib.Path(exported_version)


@pytest.fixture(scope="module")
def texts(copy_files):
    lines = (copy_files / "test.source").read_text(encoding="utf-8").splitlines()
    # One is empty, one is too long, and one has letters that the model never saw.
    return [*lines, "", "a " * 300, "Übergrößenträger 日本"]


@pytest.fixture(scope="module")
def expected(model, texts):
    translations = tt.Translator.load(model)(texts)
    assert len(set(translations)) > 5, "translations that differ, or equality says little"
    return translations


SCRIPT = """
import json, keras, sys, tensorflow as tf, tensorflow_text
sys.modules["tf_transformer"] = None
model = tf.saved_model.load(sys.argv[1])
layer = keras.layers.TFSMLayer(sys.argv[1], call_endpoint="serving_default")
texts = tf.constant(json.load(sys.stdin))
found = [model.signatures["serving_default"](text=texts), layer(texts)]
print(json.dumps([[text.decode() for text in each["translation"].numpy()] for each in found]))
"""


@pytest.mark.slow
def test_python_without_this_package(model, texts, expected):
    printed = run_python("-I", "-c", SCRIPT, model, input=json.dumps(texts))
    assert last_json(printed) == [expected, expected]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="no C compiler")
def test_the_c_api(model, texts, expected, tmp_path):
    program = tmp_path / "translate"
    libraries = pathlib.Path(tf.sysconfig.get_lib())
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-o", program, C_PROGRAM,
         "-I", tf.sysconfig.get_include(), "-L", libraries, f"-Wl,-rpath,{libraries}",
         "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"],
        check=True,
    )  # fmt: skip
    signature = SavedModelSession(model).meta_graph.signature_def["serving_default"]
    text_ops = pathlib.Path(importlib.util.find_spec("tensorflow_text").origin).parent
    done = subprocess.run(
        [program, model, signature.inputs["text"].name, signature.outputs["translation"].name,
         text_ops / "python" / "ops" / "_sentencepiece_tokenizer.so"],
        input="".join(f"{text}\n" for text in texts).encode(),
        capture_output=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:].decode()
    assert done.stdout.decode() == "".join(f"{text}\n" for text in expected)
