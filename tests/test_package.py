"""The package as a whole: what an import loads, its names, the Makefile, and the wheel."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from commands import run_python
from pages import ROOT

import tf_transformer


def test_an_import_loads_no_heavy_library():
    code = (
        "import sys, tf_transformer, tf_transformer.cli; "
        "print({'tensorflow', 'keras', 'sentencepiece', 'sacrebleu'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_every_public_name_is_there():
    for name in tf_transformer.__all__:
        assert getattr(tf_transformer, name).__name__ == name
    with pytest.raises(AttributeError, match="Transfomer"):
        _ = tf_transformer.Transfomer


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-text", "keras"])
def test_what_has_private_members_that_we_use_is_of_one_minor_version(name):
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    lowest, highest = re.search(rf"^{name}>=([\d.]+),<([\d.]+)$", pins, re.M).groups()
    (major, minor), end = lowest.split(".")[:2], highest.split(".")
    assert [int(number) for number in end] == [int(major), int(minor) + 1]


def test_the_reading_path_is_ten_files_that_fit_an_evening():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"^\| \d+ \| `([^`]+)` \|", page, re.MULTILINE)
    assert len(files) == 10
    texts = [(ROOT / "tf_transformer" / file).read_text(encoding="utf-8") for file in files]
    assert sum(len(text.splitlines()) for text in texts) <= 1800


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
        arguments = ["make", "-f", ROOT / "Makefile", "PYTHON=./python", ".venv/.installed"]
        return subprocess.run(arguments, cwd=tmp_path, capture_output=True, timeout=60).returncode

    assert make() != 0
    assert (tmp_path / ".venv/bin/python").exists()
    (tmp_path / "broken").unlink()
    assert make() == 0
    assert make() == 0
    calls = (tmp_path / "calls").read_text(encoding="utf-8").split()
    assert calls == ["venv", "venv", "pip"], "complete the second time, and kept the third"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with nothing but the installed wheel."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    run_python(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT)
    (wheel,) = wheels.iterdir()
    run_python(*pip, "install", "--no-deps", "--target", target, wheel)
    return target


@pytest.mark.slow
def test_the_wheel_runs_outside_of_the_checkout(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed), "CUDA_VISIBLE_DEVICES": ""}
    options = {"cwd": tmp_path, "env": environment}
    where = "import tf_transformer.layers.attention as a; print(a.__file__)"
    printed = run_python("-c", where, **options)
    assert printed.splitlines()[-1].startswith(str(installed))
    sizes = "--num-layers=1 --d-model=16 --num-heads=2 --d-ff=32 --vocab-size=280 --steps=2".split()
    train = ["train", "--corpus=copy", "--run-dir=run", *sizes]
    command = ["-m", "tf_transformer.cli"]
    for arguments in (train, ["export", "run", "saved", "--beam-size=1"]):
        run_python(*command, *arguments, **options)
    translations = run_python(*command, "translate", "saved", **options, input="a b\nc\n")
    assert translations.count("\n") == 2


def test_the_wheel_has_a_licence_all_files_that_are_no_code_and_no_tests(installed):
    names = {path.name for path in installed.iterdir()}
    assert {"tf_transformer"} <= names and "tests" not in names
    (metadata,) = installed.glob("tf_transformer-*.dist-info")
    assert "License-Expression: Apache-2.0" in (metadata / "METADATA").read_text(encoding="utf-8")
    assert any(metadata.rglob("LICENSE"))
    for path in ("serving/page.html", "data/phrasebook.tsv.gz"):
        file = installed / "tf_transformer" / path
        assert file.read_bytes() == (ROOT / "tf_transformer" / path).read_bytes()
