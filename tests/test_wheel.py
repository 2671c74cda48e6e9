"""The wheel: it installs and runs outside of the checkout."""

import os
import pathlib
import subprocess
import sys

import pytest

CHECKOUT = pathlib.Path(__file__).parents[1]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with nothing but the installed wheel."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(CHECKOUT))
    (wheel,) = wheels.iterdir()
    run(*pip, "install", "--no-deps", "--target", str(target), str(wheel))
    return target


@pytest.mark.slow
def test_the_wheel_runs_outside_of_the_checkout(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed), "CUDA_VISIBLE_DEVICES": ""}
    where = "import tf_transformer.layers.attention as a; print(a.__file__)"
    printed = run(sys.executable, "-c", where, cwd=tmp_path, env=environment)
    assert printed.splitlines()[-1].startswith(str(installed))
    sizes = "--num-layers=1 --d-model=16 --num-heads=2 --d-ff=32 --vocab-size=280 --steps=2".split()
    train = ["train", "--corpus=copy", "--run-dir=run", *sizes]
    for arguments in (train, ["export", "run", "saved", "--beam-size=1"]):
        run(sys.executable, "-m", "tf_transformer.cli", *arguments, cwd=tmp_path, env=environment)
    command = [sys.executable, "-m", "tf_transformer.cli", "translate", "saved"]
    assert run(*command, cwd=tmp_path, env=environment, input="a b\nc\n").count("\n") == 2


def test_the_wheel_has_a_licence_all_files_that_are_no_code_and_no_tests(installed):
    names = {path.name for path in installed.iterdir()}
    assert {"tf_transformer"} <= names and "tests" not in names
    (metadata,) = installed.glob("tf_transformer-*.dist-info")
    assert "License-Expression: Apache-2.0" in (metadata / "METADATA").read_text(encoding="utf-8")
    assert any(metadata.rglob("LICENSE"))
    for path in ("serving/page.html", "data/phrasebook.tsv.gz"):
        file = installed / "tf_transformer" / path
        assert file.read_bytes() == (CHECKOUT / "tf_transformer" / path).read_bytes()
