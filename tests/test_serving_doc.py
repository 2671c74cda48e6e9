"""Every command of docs/serving.md works as it stands there.

Those of its section on clients are in `test_client.py`.
"""

import json
import re
import shutil

import pages
import pytest

PAGE = pages.ROOT / "docs" / "serving.md"


@pytest.fixture
def folder(trained_run, exported_run, copy_files, tmp_path):
    """A folder with runs/demo and saved_models/demo, as after `make demo`."""
    shutil.copytree(exported_run[0], tmp_path / "saved_models" / "demo")
    run = shutil.copytree(trained_run[0], tmp_path / "runs" / "demo")
    (run / "test").mkdir(exist_ok=True)
    for side in ("source", "target"):
        shutil.copy(copy_files / f"test.{side}", run / "test" / f"{side}.txt")
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_command_works(folder):
    text = PAGE.read_text(encoding="utf-8")
    [example] = map(json.loads, pages.blocks_of(text, "json"))
    text = re.sub(r"\n## Clients\n.*?\n## ", "\n## ", text, flags=re.DOTALL)
    # Another page has the choice of the search.
    text = re.sub("export runs/demo saved_models/demo", r"\g<0> --beam-size=1", text)
    commands = list(pages.commands_of(text))
    answers = pages.run_commands(commands, folder)
    assert answers[0].keys() == example.keys()
    assert all("error" not in answer for answer in answers)
    assert len(answers) >= 5
    kinds = {command.split()[1] for command in commands if command.startswith("tf-transformer")}
    assert kinds == {"doctor", "serve", "export"}
