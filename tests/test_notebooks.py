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
NOTEBOOKS = [path.with_suffix(".ipynb") for path in sorted((ROOT / "notebooks").glob("*.py"))]
# Modules of the package that a notebook may import from; for all else `tt` has the name.
PARTS = ("layers", "serving", "visualization")
MODULES = {"tf_transformer", *(f"tf_transformer.{part}" for part in PARTS)}
LARGEST = 700_000

spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "dev" / "run_notebooks.py")
run_notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_notebooks)

NOTEBOOKS_READ = {path: jupytext.read(path) for path in NOTEBOOKS}
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each
def test_a_notebook_is_its_script_run_in_full(path):
    notebook, script = NOTEBOOKS_READ[path], jupytext.read(path.with_suffix(".py"))
    assert [(c.cell_type, c.source) for c in notebook.cells] == [
        (c.cell_type, c.source) for c in script.cells
    ]
    digest = run_notebooks.source_digest(script)
    advice = f"run python dev/run_notebooks.py {path.stem}"
    assert notebook.metadata.get("source_sha256") == digest, advice
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run in full, from top to bottom"


@each
def test_outputs_hold_no_error_no_noise_and_no_path_of_a_machine(path):
    outputs = [out for cell in NOTEBOOKS_READ[path].cells for out in cell.get("outputs", ())]
    pictures = [out["data"].pop("image/png", None) for out in outputs if "data" in out]
    assert any(pictures), "no picture"
    for out in outputs:
        assert out.output_type != "error"
        assert out.get("name") != "stderr", out.text
        assert not re.search(r"/(home|root|tmp|work|var)/|Traceback", json.dumps(out))
    assert path.stat().st_size < LARGEST


@each
def test_only_public_names_are_used(path):
    cells = [cell.source for cell in NOTEBOOKS_READ[path].cells if cell.cell_type == "code"]
    # Without the lines for IPython.
    code = [line for line in "\n".join(cells).splitlines() if line[:1] not in "%!"]
    for node in ast.walk(ast.parse("\n".join(code))):
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), ast.unparse(node)
            if isinstance(node.value, ast.Name) and node.value.id == "tt":
                assert node.attr in tt.__all__, node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            modules = names if isinstance(node, ast.Import) else [node.module]
            assert not any(name.startswith("_") for name in names), ast.unparse(node)
            if modules == ["tf_transformer"] and isinstance(node, ast.ImportFrom):
                assert {*names} <= {*tt.__all__, *PARTS}, ast.unparse(node)
            for module in modules:
                assert not module.startswith("tf_transformer") or module in MODULES, module


@each
def test_links_lead_somewhere(path):
    cells = NOTEBOOKS_READ[path].cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        assert ":" in target or (path.parent / target.partition("#")[0]).exists(), target
