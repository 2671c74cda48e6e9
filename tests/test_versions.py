"""Versions of a SavedModel: they count up, are written atomically, and are found."""

import pytest

import tf_transformer as tt
from tf_transformer.export.manifest import write_manifest
from tf_transformer.export.versions import ExportError, write_version
from tf_transformer.inference.saved_model import SAVED_MODEL, SavedModelError, find_saved_model


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "saved_models" / "demo"


def write_named(name, folder, version=None, manifest=None, overwrite=False):
    """Writes a version that is one file instead of a graph."""

    def write(temporary):
        (temporary / "saved_model.pb").write_text(name, encoding="utf-8")
        write_manifest(temporary, manifest)

    return write_version(write, SAVED_MODEL, folder, version, overwrite)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def content(folder, version):
    return (folder / str(version) / "saved_model.pb").read_text(encoding="utf-8")


def test_versions_count_up_from_the_highest(folder):
    paths = [write_named("a", folder, version) for version in (None, 9)]
    paths += [write_named("a", folder) for _ in range(2)]
    assert paths == [folder / "1", folder / "9", folder / "10", folder / "11"]
    assert names_in(folder) == ["1", "10", "11", "9"], "and nothing beside them"
    assert find_saved_model(folder) == folder / "11"


def test_a_folder_of_another_format_is_refused(folder):
    (folder / "4").mkdir(parents=True)
    (folder / "4" / "model.bin").write_bytes(b"")
    with pytest.raises(ExportError, match=r"holds CTranslate2 models\. Give another"):
        write_named("a", folder)
    with pytest.raises(SavedModelError, match="holds a CTranslate2 model"):
        find_saved_model(folder)


def test_a_file_is_no_folder_of_versions(folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("mine")
    with pytest.raises(ExportError, match=r"is a file\. Give a folder"):
        write_named("a", folder)
    assert folder.read_text() == "mine"


def test_a_version_that_exists_is_refused(folder):
    write_named("old", folder, version=2)
    with pytest.raises(ExportError, match=r"--overwrite") as caught:
        write_named("new", folder, version=2)
    assert str(folder / "2") in str(caught.value)
    assert content(folder, 2) == "old"
    assert names_in(folder) == ["2"]


def test_a_version_is_overwritten_when_told(folder):
    write_named("old", folder, version=2)
    write_named("new", folder, version=2, overwrite=True)
    assert content(folder, 2) == "new"
    assert names_in(folder) == ["2"]


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_below_one_is_refused(folder, version):
    with pytest.raises(ExportError, match=f"received version={version}"):
        write_named("a", folder, version)
    assert not folder.exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("partly", [False, True])
def test_a_failing_export_leaves_nothing_behind(folder, overwrite, partly):
    write_named("old", folder, version=1)

    def fail(temporary):
        if partly:
            (temporary / "saved_model.pb").write_text("new", encoding="utf-8")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_version(fail, SAVED_MODEL, folder, 1 if overwrite else None, overwrite)
    assert names_in(folder) == ["1"]
    assert content(folder, 1) == "old"


def test_a_manifest_that_is_not_json_leaves_nothing_behind(folder):
    write_named("old", folder)
    with pytest.raises(TypeError):
        write_named("new", folder, manifest={"model": object()})
    assert names_in(folder) == ["1"]


def test_a_training_run_is_no_saved_model_and_is_not_named_as_its_folder(tmp_path):
    (tmp_path / "config.toml").touch()
    with pytest.raises(SavedModelError) as caught:
        find_saved_model(tmp_path)
    assert "is a training run" in str(caught.value)
    assert f"tf-transformer export {tmp_path} saved_models/NAME" in str(caught.value)


def make_version(folder, name):
    (folder / name).mkdir(parents=True)
    (folder / name / "saved_model.pb").write_bytes(b"")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["9", "10"], "10"),
        (["2", "1"], "2"),
        (["1", "backup", ".writing-3-ab", "2.5", "-7"], "1"),
    ],
)
def test_the_highest_number_is_found(folder, names, expected):
    for name in names:
        make_version(folder, name)
    assert find_saved_model(folder) == folder / expected
    assert find_saved_model(str(folder / expected)) == folder / expected


def test_a_number_without_a_saved_model_is_skipped(folder):
    make_version(folder, "1")
    (folder / "2").mkdir()
    assert find_saved_model(folder) == folder / "1"


def test_without_a_saved_model_the_export_command_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    for path in (tmp_path, tmp_path / "missing", file):
        with pytest.raises(SavedModelError, match="tf-transformer export") as caught:
            tt.Translator.load(path)
        assert str(path) in str(caught.value)
