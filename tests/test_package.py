"""The package as a whole: what an import loads, its public names and the reading path."""

import re
import subprocess
import sys

import pages
import pytest

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
    pins = (pages.ROOT / "requirements.txt").read_text(encoding="utf-8")
    lowest, highest = re.search(rf"^{name}>=([\d.]+),<([\d.]+)$", pins, re.M).groups()
    (major, minor), end = lowest.split(".")[:2], highest.split(".")
    assert [int(number) for number in end] == [int(major), int(minor) + 1]


def test_the_reading_path_is_ten_files_that_fit_an_evening():
    page = (pages.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"^\| \d+ \| `([^`]+)` \|", page, re.MULTILINE)
    assert len(files) == 10
    texts = [(pages.ROOT / "tf_transformer" / file).read_text(encoding="utf-8") for file in files]
    assert sum(len(text.splitlines()) for text in texts) <= 1800
