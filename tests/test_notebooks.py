"""Notebooks equal their scripts and have no output; `make notebooks` executes them."""

import pathlib

import jupytext
import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_equals_its_script_and_carries_no_output(path):
    notebook = jupytext.read(path)
    script = jupytext.read(path.with_suffix(".py"))
    assert [(c.cell_type, c.source) for c in notebook.cells] == [
        (c.cell_type, c.source) for c in script.cells
    ]
    assert not any(cell.get("outputs") for cell in notebook.cells)
