"""Versions of a SavedModel: they count up, appear whole or not at all, and are found."""

import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.export import saved_model
from tf_transformer.export.saved_model import find_saved_model, write_saved_model
from tf_transformer.export.versions import ExportError


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "saved_models" / "demo"


@pytest.fixture
def quick_save(monkeypatch):
    """Saves a file that says which, in place of a graph: what is tested is the folders."""

    def save(translator, path, signatures):
        assert set(signatures) == {"serving_default"}
        target = tf.io.gfile.join(path, "saved_model.pb")
        tf.io.gfile.makedirs(path)
        with open(target, "w", encoding="utf-8") as file:
            file.write(translator.name)

    monkeypatch.setattr(saved_model.tf.saved_model, "save", save)


def translator_named(name):
    module = tf.Module(name)
    module.signatures = lambda: {"serving_default": None}
    return module


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def content(folder, version):
    return (folder / str(version) / "saved_model.pb").read_text(encoding="utf-8")


def test_versions_count_up_from_the_highest(folder, quick_save):
    paths = [write_saved_model(translator_named("a"), folder, version) for version in (None, 9)]
    paths += [write_saved_model(translator_named("a"), folder) for _ in range(2)]
    assert paths == [folder / "1", folder / "9", folder / "10", folder / "11"]
    assert names_in(folder) == ["1", "10", "11", "9"], "and nothing beside them"
    assert find_saved_model(folder) == folder / "11"


def test_a_folder_of_another_format_is_refused(folder, quick_save):
    (folder / "4").mkdir(parents=True)
    (folder / "4" / "model.bin").write_bytes(b"")
    with pytest.raises(ExportError, match=r"holds CTranslate2 models\. Give another"):
        write_saved_model(translator_named("a"), folder)
    with pytest.raises(ExportError, match="holds a CTranslate2 model"):
        find_saved_model(folder)


def test_a_file_is_no_folder_of_versions(folder, quick_save):
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("mine")
    with pytest.raises(ExportError, match=r"is a file\. Give a folder"):
        write_saved_model(translator_named("a"), folder)
    assert folder.read_text() == "mine"


def test_a_version_that_exists_is_refused(folder, quick_save):
    write_saved_model(translator_named("old"), folder, version=2)
    with pytest.raises(ExportError, match=r"--overwrite") as caught:
        write_saved_model(translator_named("new"), folder, version=2)
    assert str(folder / "2") in str(caught.value)
    assert content(folder, 2) == "old"
    assert names_in(folder) == ["2"]


def test_a_version_is_overwritten_when_told(folder, quick_save):
    write_saved_model(translator_named("old"), folder, version=2)
    write_saved_model(translator_named("new"), folder, version=2, overwrite=True)
    assert content(folder, 2) == "new"
    assert names_in(folder) == ["2"]


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_below_one_is_refused(folder, quick_save, version):
    with pytest.raises(ExportError, match=f"received version={version}"):
        write_saved_model(translator_named("a"), folder, version)
    assert not folder.exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("partly", [False, True])
def test_a_failing_save_leaves_nothing_behind(folder, quick_save, monkeypatch, overwrite, partly):
    write_saved_model(translator_named("old"), folder, version=1)
    good_save = tf.saved_model.save

    def fail(*arguments, **options):
        if partly:
            good_save(*arguments, **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_model.tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="No space"):
        write_saved_model(
            translator_named("new"), folder, version=1 if overwrite else None, overwrite=overwrite
        )
    assert names_in(folder) == ["1"]
    assert content(folder, 1) == "old"


def test_a_manifest_that_is_not_json_leaves_nothing_behind(folder, quick_save):
    write_saved_model(translator_named("old"), folder)
    with pytest.raises(TypeError):
        write_saved_model(translator_named("new"), folder, manifest={"model": object()})
    assert names_in(folder) == ["1"]


def test_a_failing_first_save_leaves_no_folder(folder, quick_save, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_model.tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="No space"):
        write_saved_model(translator_named("new"), folder)
    assert not folder.exists() or names_in(folder) == []


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


def test_a_number_without_a_saved_model_is_passed_over(folder):
    make_version(folder, "1")
    (folder / "2").mkdir()
    assert find_saved_model(folder) == folder / "1"


def test_where_there_is_none_the_command_that_makes_one_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    for path in (tmp_path, tmp_path / "missing", file):
        with pytest.raises(ExportError, match="tf-transformer export") as caught:
            tt.Translator.load(path)
        assert str(path) in str(caught.value)
