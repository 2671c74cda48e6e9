"""`dev/interop.py`: what of it needs no other engine."""

import importlib
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"


@pytest.fixture
def interop(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "dev")
    return importlib.import_module("interop")


def test_a_table_replaces_the_old_one_and_nothing_else(interop):
    page, (start, end) = interop.PAGE.read_text("utf-8"), interop.MARKERS
    expected = f"{page.split(start)[0]}{start}\n| a \\1 |\n\n{end}{page.split(end)[1]}"
    assert interop.replaced(page, "| a \\1 |") == expected != page


@pytest.mark.slow
def test_a_row_counts_equal_strings(interop, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (FIXTURES / "opennmt_tf" / "shared").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    answers = json.loads((folder / "answers.json").read_text("utf-8"))
    answers["greedy"][0] += "!"
    (folder / "answers.json").write_text(json.dumps(answers))
    name, scores, greedy, beam, *_ = interop.compared("a name", "opennmt-tf", folder).split(" | ")
    assert name == "a name"
    assert float(scores.removeprefix("differ by ")) < 1e-4
    same, of = greedy.split(" (")[0].split(" of ")
    assert int(same) == int(of) - 1, greedy
    assert beam
