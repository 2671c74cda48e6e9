"""The manifest of an export: complete and true, and what is not as it says is found."""

import hashlib
import json
import os

import pytest

from tf_transformer.errors import InputError
from tf_transformer.export.manifest import (
    EXTRA,
    ManifestError,
    read_manifest,
    verify,
    verify_files,
    write_manifest,
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


def assert_named(folder, path, word):
    """One problem, in one line that names the file and says what to do."""
    (line,) = verify_files(folder)
    assert line.startswith(f"{path}: ") and word in line and "\n" not in line
    assert line.endswith(("export it again.", "Remove it."))
    with pytest.raises(ManifestError) as caught:
        verify(folder)
    assert str(caught.value) == line
    assert isinstance(caught.value, InputError)


def test_the_manifest_of_an_export_has_the_digest_of_every_other_file(exported_run):
    folder = exported_run[0] / "1"
    found = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "tf_transformer.json"
    }
    assert read_manifest(folder)["files"] == found
    assert {"saved_model.pb", "variables/variables.index", "fingerprint.pb"} <= set(found)
    assert {"batching_params.pbtxt", "assets.extra/tf_serving_warmup_requests"} <= set(found)
    assert verify_files(folder) == []


def test_what_is_as_it_was_written_passes(version):
    manifest = read_manifest(version)
    assert manifest["step"] == 7 and manifest["schema"] == 1
    assert manifest["versions"]["tf_transformer"] and manifest["created"].startswith("20")
    assert verify_files(version) == verify_files(str(version)) == []
    verify(version)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_found_in_each_file(version, name):
    path = version / name
    content = bytearray(path.read_bytes() or b"was empty")
    content[-1] ^= 1
    path.write_bytes(content)
    assert_named(version, path, hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("name", FILES)
def test_each_missing_file_is_found(version, name):
    (version / name).unlink()
    assert_named(version, version / name, "is missing")


@pytest.mark.parametrize("name", ["model.tflite", "assets/more/deep", "x/tf_transformer.json"])
def test_an_added_file_is_found(version, name):
    (version / name).parent.mkdir(exist_ok=True)
    (version / name).write_bytes(b"new")
    assert_named(version, version / name, "was not there")


@pytest.mark.parametrize("target", ["nowhere", os.devnull])
def test_what_takes_the_place_of_a_file_is_not_read(version, target):
    path = version / "saved_model.pb"
    path.unlink()
    path.symlink_to(target)
    assert_named(version, path, "is no file any more")


def test_a_link_to_a_folder_is_found_and_a_link_to_the_same_file_passes(version, tmp_path):
    path = version / "saved_model.pb"
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    assert verify_files(version) == []
    (version / "more").symlink_to(tmp_path)
    assert_named(version, version / "more", "was not there")


def test_all_problems_are_named_in_the_order_of_their_paths(version):
    (version / "saved_model.pb").unlink()
    (version / "added").touch()
    (version / "fingerprint.pb").write_text("changed")
    assert [line.split(": ")[0] for line in verify_files(version)] == [
        str(version / name) for name in ("added", "fingerprint.pb", "saved_model.pb")
    ]


@pytest.mark.parametrize("version", [EXTRA], indirect=True)
def test_a_manifest_beside_the_files_does_not_replace_that_of_the_export(version):
    added = version / "tf_transformer.json"
    added.write_text('{"files": {}}')
    assert read_manifest(version)["step"] == 7
    assert_named(version, added, "was not there")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"step": 7}',
        b'{"files": ["saved_model.pb"]}',
        b'{"files": {"saved_model.pb": 5}}',
        b"[" * 200_000,
    ],
    ids=lambda content: str(content[:30]),
)
def test_what_is_no_manifest_is_one_line(tmp_path, content):
    path = tmp_path / EXTRA / "tf_transformer.json"
    path.parent.mkdir()
    path.write_bytes(content)
    assert_named(tmp_path, path, "is no manifest")
    with pytest.raises(ManifestError):
        read_manifest(tmp_path)


def test_a_version_without_a_manifest_is_one_line(tmp_path):
    assert_named(tmp_path, tmp_path, "has no manifest")
    assert_named(tmp_path / "missing", tmp_path / "missing", "has no manifest")


def test_a_path_that_leads_out_of_the_version_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"mine")
    folder = tmp_path / "1"
    (folder / EXTRA).mkdir(parents=True)
    files = {"../secret": hashlib.sha256(b"mine").hexdigest()}
    (folder / EXTRA / "tf_transformer.json").write_text(json.dumps({"files": files}))
    assert_named(folder, folder / "../secret", "is missing")
