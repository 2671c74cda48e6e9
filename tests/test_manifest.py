"""Versions of an export: written atomically, found, and verified by their manifests."""

import hashlib
import json
import os
import re

import pytest

import tf_transformer as tt
from tf_transformer.export.manifest import (
    EXTRA,
    ExportError,
    manifest_path,
    read_manifest,
    verify_files,
    version_folder,
    write_manifest,
)
from tf_transformer.files import atomic_folder
from tf_transformer.inference.versions import (
    CTRANSLATE2,
    SAVED_MODEL,
    SavedModelError,
    find_saved_model,
    version_number,
    versions,
)

FILES = {
    "saved_model.pb": b"graph",
    "fingerprint.pb": b"",
    "variables/variables.index": b"index",
    "assets/Wörter.txt": b"eins\n",
    "assets.extra/tf_serving_warmup_requests": b"record",
}


@pytest.fixture(params=[EXTRA, ""], ids=["in assets.extra", "beside the files"])
def version(request, tmp_path):
    """A version of a few small files."""
    folder = tmp_path / "demo" / "1"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    write_manifest(folder, {"step": 7}, request.param)
    return folder


def assert_named(folder, path, words):
    """One problem, in one line that names the file."""
    (line,) = verify_files(folder)
    assert line.startswith(f"{path}: ") and words in line and "\n" not in line


# The manifest


def test_each_changed_or_missing_file_is_found(version):
    assert read_manifest(version)["step"] == 7 and verify_files(version) == []
    for name in FILES:
        path = version / name
        content = path.read_bytes()
        assert read_manifest(version)["files"][name] == hashlib.sha256(content).hexdigest()
        path.write_bytes(bytes([*content[:-1], *[content[-1] ^ 1 if content else 0]]))
        assert_named(version, path, "was changed")
        path.unlink()
        assert_named(version, path, "is missing")
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.tflite", "assets/more/deep", "x/tf_transformer.json"])
def test_an_added_file_is_found(version, name):
    (version / name).parent.mkdir(exist_ok=True)
    (version / name).write_bytes(b"new")
    assert_named(version, version / name, "was not there")


def test_links_are_followed_to_files_only(version, tmp_path):
    path = version / "saved_model.pb"
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    assert verify_files(version) == []
    (version / "more").symlink_to(tmp_path)
    assert_named(version, version / "more", "was not there")
    (version / "more").unlink()
    path.unlink()
    path.symlink_to(os.devnull)  # which would never end
    assert_named(version, path, "is missing")


@pytest.mark.parametrize(
    "content",
    [None, b"\xff\xfe", b"[]", b'{"step": 7}', b'{"files": ["a"]}', b"[" * 200_000],
    ids=lambda content: str(content and content[:30]),
)
def test_what_is_no_manifest_is_one_line(tmp_path, content):
    path = tmp_path / EXTRA / "tf_transformer.json"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    assert_named(tmp_path, tmp_path, "has no intact manifest")


def test_a_path_that_leads_out_of_the_version_is_not_followed(version):
    manifest = manifest_path(version)
    content = json.loads(manifest.read_bytes())
    (version.parent / "secret").write_bytes(b"mine")
    content["files"]["../secret"] = hashlib.sha256(b"mine").hexdigest()
    manifest.write_text(json.dumps(content))
    assert_named(version, version / "../secret", "is missing")


# Versions


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "saved_models" / "demo"


def write_named(name, folder, version=None, overwrite=False):
    """Writes a version that is one file instead of a graph."""
    target = version_folder(SAVED_MODEL, folder, version, overwrite)
    with atomic_folder(target, overwrite=overwrite) as temporary:
        (temporary / "saved_model.pb").write_text(name, encoding="utf-8")
    return target


def test_versions_count_up_from_the_highest(folder):
    paths = [write_named("a", folder, version) for version in (None, 9)]
    paths += [write_named("a", folder) for _ in range(2)]
    assert paths == [folder / "1", folder / "9", folder / "10", folder / "11"]
    assert {path.name for path in folder.iterdir()} == {"1", "9", "10", "11"}
    with pytest.raises(ExportError, match=f"{folder / '9'} exists.*--overwrite"):
        write_named("new", folder, version=9)
    assert write_named("new", folder, version=9, overwrite=True) == folder / "9"
    assert (folder / "9" / "saved_model.pb").read_text(encoding="utf-8") == "new"


def test_where_no_version_can_be_is_refused(folder):
    for version in (0, -1, 2**63):
        with pytest.raises(ExportError, match=f"received version={version}"):
            write_named("a", folder, version)
    (folder / "4").mkdir(parents=True)
    (folder / "4" / "model.bin").write_bytes(b"")
    with pytest.raises(ExportError, match=r"holds CTranslate2 models\. Give another"):
        write_named("a", folder)
    with pytest.raises(SavedModelError, match=r"only CTranslate2 reads"):
        find_saved_model(folder)
    with pytest.raises(ExportError, match=r"is a file\. Give a folder"):
        write_named("a", folder / "4" / "model.bin")
    (folder / "checkpoints").mkdir()
    with pytest.raises(ExportError, match=r"holds a run\. Give another"):
        write_named("a", folder)
    with pytest.raises(SavedModelError, match=f"is a run.*tf-transformer export {folder}"):
        find_saved_model(folder)


def test_the_highest_number_with_a_saved_model_is_found(folder):
    for name in ("1", "9", "10", "backup", ".writing-3-ab", "20.5", "-7"):
        (folder / name).mkdir(parents=True)
        (folder / name / "saved_model.pb").write_bytes(b"")
    (folder / "99").mkdir()
    for path in (folder, str(folder / "10")):
        assert find_saved_model(path) == folder / "10"
    with pytest.raises(SavedModelError, match=f"but in {folder}. Give"):
        find_saved_model(folder.parent)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("00000123", 123), ("0", 0), ("+5", 5), ("20261126120000", 20261126120000),
        ("9223372036854775807", 2**63 - 1), ("9223372036854775808", None), ("9" * 200, None),
        ("٣", None), ("²", None), ("1_0", None), ("-7", None), ("0x10", None), ("1.5", None),
        ("3.tmp", None), (".writing-3-ab", None), ("", None),
    ],
)  # fmt: skip
def test_a_number_is_read_as_tensorflow_serving_reads_it(folder, name, number):
    assert version_number(name) == number
    if name:
        (folder / name).mkdir(parents=True)
        assert versions(folder) == ({} if number is None else {number: folder / name})


def test_a_folder_with_leading_zeros_keeps_its_name(folder):
    for name in ("1", "002"):
        (folder / name).mkdir(parents=True)
        (folder / name / "saved_model.pb").write_bytes(b"")
    assert find_saved_model(folder) == folder / "002"
    with pytest.raises(ExportError, match=f"{folder / '002'} exists"):
        write_named("a", folder, version=2)
    assert write_named("new", folder, version=2, overwrite=True) == folder / "002"
    assert write_named("a", folder) == folder / "3"


def test_two_folders_of_one_number_are_refused(folder):
    for name in ("1", "001", "2"):
        (folder / name).mkdir(parents=True)
        (folder / name / "saved_model.pb").write_bytes(b"")
    message = f"{folder}: 001 and 1 are the same version. Remove one."
    for use in (find_saved_model, lambda path: write_named("a", path)):
        with pytest.raises(SavedModelError, match=re.escape(message)):
            use(folder)


def test_a_path_without_a_saved_model_is_named_and_what_to_give(tmp_path):
    run = tmp_path / "runs" / "de_en"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("runs/de_en/config.toml", "file"):
        (tmp_path / name).touch()
    for path, words in (
        (tmp_path, "Write one with: tf-transformer export"),
        (tmp_path / "missing", "is no folder"),
        (tmp_path / "file", f"is a file. Give its folder: {tmp_path}$"),
        (run.parent, f"but runs: {run}. Give one, or export it"),
        (run, "is a run. Export it"),
    ):
        with pytest.raises(SavedModelError, match=f"{path}: .*{words}"):
            tt.Translator.load(path)


@pytest.mark.parametrize("name", ["a[b]c", "a\\b", "a[!b]"])
def test_paths_that_tensorflow_takes_for_patterns_are_refused(tmp_path, name):
    for folder in (tmp_path / name, tmp_path / name / "de_en"):
        with pytest.raises(SavedModelError, match=r"takes .* for a pattern"):
            version_folder(SAVED_MODEL, folder)
    (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / name / "1" / "saved_model.pb").touch()
    with pytest.raises(SavedModelError, match=r"takes .* for a pattern"):
        tt.Translator.load(tmp_path / name)
    for fine in ("a[b", "a]b", "a*b", "a?b", "{a}"):
        assert version_folder(SAVED_MODEL, tmp_path / fine).name == "1"
    version_folder(CTRANSLATE2, tmp_path / "other[s]" / "de_en")
