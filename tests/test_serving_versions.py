"""The version of a model that is served: which one is loaded, and what is refused."""

import pytest
import tensorflow as tf
from stub_server import StubModel, make_version, write_manifest

from tf_transformer.errors import InputError
from tf_transformer.export import manifest
from tf_transformer.serving import served_model
from tf_transformer.serving.served_model import load_version
from tf_transformer.serving.session import WARM_UP, SavedModelSession


@pytest.fixture
def folder(tmp_path):
    """A folder of versions with one, which has a manifest."""
    make(tmp_path / "demo", 1)
    return tmp_path / "demo"


@pytest.fixture
def loaded(monkeypatch):
    """The names of the versions that were loaded, as stubs."""
    found = []

    def load(folder):
        found.append(folder.name)
        if (folder / "saved_model.pb").read_text() == "broken":
            raise RuntimeError("Could not find variable\nand much more")
        return StubModel()

    monkeypatch.setattr(served_model, "SavedModelSession", load)
    return found


def make(folder, number):
    make_version(folder, number)
    write_manifest(folder / str(number))


@pytest.mark.parametrize(
    ("folder_here", "path", "name"),
    [("", "demo", "0003"), ("demo", ".", "0003"), ("", "demo/1", "1"), ("demo/1", ".", "1")],
)
def test_the_highest_version_is_served_or_the_one_that_is_named(
    folder, loaded, monkeypatch, folder_here, path, name
):
    """How versions are found is tested in `test_manifest.py`."""
    for other in ("0003", "02"):
        make(folder, other)
    monkeypatch.chdir(folder.parent / folder_here)
    version = load_version(path)
    assert (version.name, version.number, loaded) == ("demo", int(name), [name])


def test_a_version_without_a_number_is_named(folder):
    (folder / "1").rename(folder / "first")
    with pytest.raises(InputError, match="demo/first: a version must have a number"):
        load_version(folder / "first")


def test_a_version_that_cannot_be_served_is_an_error(folder, loaded):
    (folder / "1" / "saved_model.pb").write_text("broken")
    with pytest.raises(InputError, match=r"saved_model.pb: was changed after the export"):
        load_version(folder)
    assert not loaded
    write_manifest(folder / "1")
    with pytest.raises(InputError, match=r"1: cannot be served \(Could not find variable\)\. Copy"):
        load_version(folder)
    make_version(folder, 1)
    path = folder / "1" / manifest.EXTRA / manifest.MANIFEST
    path.write_text("{")
    with pytest.raises(InputError, match=r"no intact manifest"):
        load_version(folder)
    path.unlink()
    version = load_version(folder)  # a SavedModel of another exporter has none
    assert (version.number, version.manifest) == (1, {})


def test_an_export_is_warmed_up_by_its_records(echo, monkeypatch):
    ran = []
    run = SavedModelSession.run
    monkeypatch.setattr(
        SavedModelSession, "run", lambda self, *request: ran.append(request) or run(self, *request)
    )
    assert load_version(echo).manifest["files"]
    records = list(tf.data.TFRecordDataset(str(echo / "1" / WARM_UP)).as_numpy_iterator())
    assert len(ran) == len(records) and {name for name, _ in ran} >= {"serving_default"}


def test_a_version_that_is_a_link_has_the_number_of_the_link(folder, loaded):
    (folder / "1").rename(folder.parent / "any-name")
    (folder / "7").symlink_to(folder.parent / "any-name")
    version = load_version(folder)
    assert (version.name, version.number) == ("demo", 7)
