"""Notebooks equal their scripts, their outputs are of that source, and they use public names."""

import ast
import importlib.util
import json
import pathlib
import re

import jupytext
import pytest

import tf_transformer as tt

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Modules of the package that a notebook may import from; for all else `tt` has the name.
PARTS = ("layers", "serving", "visualization")
MODULES = {"tf_transformer", *(f"tf_transformer.{part}" for part in PARTS)}
LARGEST = 700_000

spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "dev" / "run_notebooks.py")
run_notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_notebooks)

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_of(notebook):
    """The code cells as Python, without the lines for IPython."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return "\n".join(line for line in "\n".join(cells).splitlines() if line[:1] not in "%!")


def test_each_script_has_its_notebook():
    scripts = [path.stem for path in sorted((ROOT / "notebooks").glob("*.py"))]
    assert scripts == [path.stem for path in NOTEBOOKS]
    assert "01_train_a_translator" in scripts


@each
def test_notebook_equals_its_script(path):
    notebook, script = jupytext.read(path), jupytext.read(path.with_suffix(".py"))
    assert [(c.cell_type, c.source) for c in notebook.cells] == [
        (c.cell_type, c.source) for c in script.cells
    ]


@each
def test_outputs_are_of_this_source(path):
    notebook = jupytext.read(path)
    digest = run_notebooks.source_digest(jupytext.read(path.with_suffix(".py")))
    assert notebook.metadata.get("source_sha256") == digest, (
        f"run python dev/run_notebooks.py {path.stem}"
    )
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run in full, from top to bottom"


@each
def test_outputs_hold_no_error_no_noise_and_no_path_of_a_machine(path):
    notebook = jupytext.read(path)
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    assert any("image/png" in out.get("data", {}) for out in outputs), "no picture"
    for out in outputs:
        out.get("data", {}).pop("image/png", None)
        assert out.output_type != "error"
        assert out.get("name") != "stderr", out.text
        assert not re.search(r"/(home|root|tmp|work|var)/|Traceback", json.dumps(out))
    assert path.stat().st_size < LARGEST


@each
def test_only_public_names_are_used(path):
    tree = ast.parse(code_of(jupytext.read(path)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), ast.unparse(node)
            if isinstance(node.value, ast.Name) and node.value.id == "tt":
                assert node.attr in tt.__all__, node.attr
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module]
            names = [alias.name for alias in node.names]
            assert not any(name.startswith("_") for name in names), ast.unparse(node)
            if node.module == "tf_transformer":
                assert {*names} <= {*tt.__all__, *PARTS}, ast.unparse(node)
        else:
            continue
        for module in modules:
            assert not module.startswith("tf_transformer") or module in MODULES, module


@each
def test_words_for_readers_have_headings_and_links_that_lead_somewhere(path):
    text = "\n\n".join(c.source for c in jupytext.read(path).cells if c.cell_type == "markdown")
    assert text.startswith("# ") and len(re.findall(r"^## ", text, re.MULTILINE)) >= 4
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert ":" in target or (path.parent / target.partition("#")[0]).exists(), target
