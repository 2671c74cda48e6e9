"""The Makefile: an incomplete environment is made again."""

import pathlib
import shutil
import subprocess

import pytest

MAKEFILE = pathlib.Path(__file__).parents[1] / "Makefile"
# Like `python -m venv DIR`: python is created first and pip last, unless it fails before.
PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo venv >> calls
mkdir -p "$3/bin"
touch "$3/bin/python"
[ -e broken ] && exit 1
printf '#!/bin/sh\\necho pip >> calls\\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_an_incomplete_environment_is_made_again(tmp_path):
    (tmp_path / "python").write_text(PYTHON, encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    for name in ("pyproject.toml", "requirements.txt", "broken"):
        (tmp_path / name).touch()

    def make():
        arguments = ["make", "-f", MAKEFILE, "PYTHON=./python", ".venv/.installed"]
        return subprocess.run(arguments, cwd=tmp_path, capture_output=True, timeout=60).returncode

    assert make() != 0
    assert (tmp_path / ".venv/bin/python").exists()
    (tmp_path / "broken").unlink()
    assert make() == 0
    assert make() == 0
    calls = (tmp_path / "calls").read_text(encoding="utf-8").split()
    assert calls == ["venv", "venv", "pip"], "complete the second time, and kept the third"
