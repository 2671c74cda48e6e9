"""The layout: which part of the package may import which, read from the sources.

The way is one-directional (layers, models, inference, training, export, command line), so that each
part can be read, tested and replaced alone. Nothing here runs the package but the last tests.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tf_transformer

PACKAGE = "tf_transformer"
ROOT = Path(tf_transformer.__file__).parent

# A part is a folder or a file directly in the package. Each names the parts that it may import; a
# new part needs a new row. Each may import those that it names, and `errors`.
ARROWS = {
    "__init__": set(),  # names are loaded from their modules when they are first used
    "errors": set(),
    "files": set(),
    "settings": set(),
    "evaluation": set(),
    "layers": {"layers"},
    "models": {"models", "layers", "settings"},
    "config": {"config", "models", "settings"},
    "tokenizers": {"tokenizers"},
    "data": {"data", "config", "files"},
    "decoding": {"decoding"},
    "inference": {"inference", "data", "decoding", "models", "tokenizers"},
    "training": {
        "training", "config", "data", "evaluation", "files", "inference", "layers", "models",
        "settings", "tokenizers",
    },
    "visualization": {"visualization"},
    "export": {"export", "files", "inference", "layers", "models", "tokenizers"},
    "serving": {"serving", "evaluation", "export", "files", "inference", "settings"},
    "commands": {
        "commands", "config", "data", "evaluation", "export", "inference", "models", "serving",
        "settings", "training", "visualization",
    },
    "cli": {"commands"},
}  # fmt: skip
# These run on any Keras backend.
PURE_KERAS = ("layers/", "models/", "training/losses.py", "training/metrics.py",
              "training/schedules.py")  # fmt: skip
PURE_KERAS_LIBRARIES = {"keras", "lazy_loader", "numpy", PACKAGE} | sys.stdlib_module_names


def modules():
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def part_of(module):
    return module.split("/")[0].removesuffix(".py")


def imported_names(source, module):
    """The full dotted names that a source file imports, wherever in the file it does.

    Args:
        source: str, Python.
        module: str, the file's path in the package, such as `"layers/masks.py"`.
    """
    package = [PACKAGE, *module.split("/")[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [] if node.level == 0 else package[: len(package) - node.level + 1]
            base += (node.module or "").split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in ("import_module", "__import__") and module != "__init__.py":
                literal = node.args and isinstance(node.args[0], ast.Constant)
                yield str(node.args[0].value) if literal else "an import made at run time"


def forbidden_arrows(source, module):
    """The imports of a file that its part may not make."""
    allowed = ARROWS[part_of(module)] | {"errors"}
    for name in imported_names(source, module):
        first, _, rest = name.partition(".")
        if name == "an import made at run time":
            yield name
        elif first == PACKAGE and rest.partition(".")[0] not in allowed:
            # `import tf_transformer` alone, too: its names come from every part.
            yield name


def impure_imports(source, module):
    """The imports of a file that are not Keras, NumPy or Python's own."""
    for name in imported_names(source, module):
        if name.split(".")[0] not in PURE_KERAS_LIBRARIES or "tensorflow" in name:
            yield name


def read(module):
    return (ROOT / module).read_text(encoding="utf-8")


def test_every_part_has_its_row_in_the_table():
    assert {part_of(module) for module in modules()} == set(ARROWS)
    assert set().union(*ARROWS.values()) <= set(ARROWS)


def test_the_table_has_no_cycle():
    left = {part: parts - {part} for part, parts in ARROWS.items()}
    while free := [part for part, parts in left.items() if not parts & left.keys()]:
        for part in free:
            del left[part]
    assert not left


@pytest.mark.parametrize("module", modules())
def test_imports_go_one_way(module):
    assert list(forbidden_arrows(read(module), module)) == []


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith(PURE_KERAS)])
def test_layers_models_and_losses_are_pure_keras(module):
    assert list(impure_imports(read(module), module)) == []


def test_the_reading_path_is_ten_files_that_fit_an_evening():
    page = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"^\| \d+ \| `([^`]+)` \|", page, re.MULTILINE)
    assert len(files) == 10
    assert sum(len(read(module).splitlines()) for module in files) <= 2500


@pytest.mark.parametrize("prefix", PURE_KERAS)
def test_the_pure_files_exist(prefix):
    assert any(module.startswith(prefix) for module in modules())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("layers/masks.py", "from tf_transformer.models.transformer import Transformer"),
        ("layers/masks.py", "import tf_transformer.config as c"),
        ("layers/masks.py", "from tf_transformer import config"),
        ("layers/masks.py", "from .. import models"),
        ("layers/masks.py", "from ..models.transformer import Transformer"),
        ("layers/masks.py", "import tf_transformer"),
        ("models/architectures.py", "def f():\n    from tf_transformer.training import train"),
        ("models/architectures.py", "from tf_transformer import Translator"),
        ("decoding/greedy.py", "import math, tf_transformer.models.transformer"),
        ("decoding/greedy.py", "from tf_transformer.config import RunConfig"),
        ("tokenizers/sentencepiece.py", "if True:\n    import tf_transformer.data.batching"),
        ("data/batching.py", "from tf_transformer.tokenizers import sentencepiece"),
        ("data/batching.py", "import importlib\nimportlib.import_module('tf_transformer.models')"),
        ("data/batching.py", "from importlib import import_module as i\nimport_module(name)"),
        ("inference/graph.py", "from tf_transformer.training.train import train"),
        ("training/train.py", "from tf_transformer.export.saved_model import export_saved_model"),
        ("training/train.py", "from tf_transformer.cli import main"),
        ("export/saved_model.py", "from tf_transformer import cli"),
        ("config/run.py", "from ..training import train"),
        ("__init__.py", "from tf_transformer.models import architectures"),
    ],
)
def test_a_forbidden_import_is_found(module, source):
    assert len(list(forbidden_arrows(source, module))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("layers/masks.py", "from keras import ops\nfrom . import positions"),
        ("layers/masks.py", "from .positions import x\nfrom tf_transformer.layers import residual"),
        (
            "models/architectures.py",
            "from ..errors import ConfigError\nimport tf_transformer.layers.masks",
        ),
        ("training/train.py", "from tf_transformer.inference.translator import Translator"),
        ("cli.py", "from .commands import train"),
        ("__init__.py", "import importlib\nimportlib.import_module(name)"),
    ],
)
def test_an_allowed_import_is_accepted(module, source):
    assert list(forbidden_arrows(source, module)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf",
        "def f():\n    from tensorflow import raw_ops",
        "import keras.src.backend.tensorflow",
        "from keras.src.backend import tensorflow",
        "import tensorflow_text",
        "import torch",
        "import jax.numpy as jnp",
    ],
)
def test_a_library_besides_keras_is_found(source):
    assert len(list(impure_imports(source, "layers/masks.py"))) == 1


# The public names


def python(code):
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_importing_the_package_loads_no_tensorflow_and_no_keras():
    heavy = (
        "{'tensorflow', 'keras', 'tensorflow_text', 'sentencepiece', 'sacrebleu', 'ctranslate2'}"
    )
    code = f"import sys, {PACKAGE}; print(sorted({heavy} & set(sys.modules)))"
    assert python(code) == "[]\n"
    # The check finds a module that is loaded.
    code = f"import sys, {PACKAGE}; {PACKAGE}.NoamSchedule; print('keras' in sys.modules)"
    assert python(code) == "True\n"


def test_lines_need_no_tensorflow():
    code = f"import sys, {PACKAGE}.inference.lines; print('tensorflow' in sys.modules)"
    assert python(code) == "False\n"


@pytest.mark.parametrize("name", tf_transformer.__all__)
def test_every_public_name_is_there(name):
    value = getattr(tf_transformer, name)
    assert value.__name__ == name
    assert value.__module__.startswith(f"{PACKAGE}.")
    assert name in dir(tf_transformer)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="No tf_transformer attribute Transfomer"):
        _ = tf_transformer.Transfomer
    with pytest.raises(ImportError):
        exec("from tf_transformer import Transfomer")
