"""The versions of a model that is served: which one is loaded, checked, replaced and freed."""

import concurrent.futures
import logging
import re
import shutil
import threading
import weakref

import pytest
import tensorflow as tf
from stub_server import (
    MODEL,
    StubModel,
    ask,
    eventually,
    make_version,
    serving,
    translate,
    write_manifest,
)

from tf_transformer.errors import InputError
from tf_transformer.export import manifest
from tf_transformer.serving import versions as versions_file
from tf_transformer.serving.session import WARM_UP, SavedModelSession
from tf_transformer.serving.versions import Versions


@pytest.fixture
def folder(tmp_path):
    """A folder of versions with one, which has a manifest."""
    make(tmp_path / "demo", 1)
    return tmp_path / "demo"


class Loader:
    """Makes stubs of versions; `loaded` has those that are not freed, the newest of each number."""

    def __init__(self):
        self.loaded = weakref.WeakValueDictionary()
        self.calls = []

    def __call__(self, folder):
        number = int(folder.name)
        self.calls.append(number)
        content = (folder / "saved_model.pb").read_text()
        if content == "broken":
            raise RuntimeError("Could not find variable\nand much more")
        model = self.loaded[number] = StubModel(f"{content} ")
        return model


@pytest.fixture
def loader():
    return Loader()


@pytest.fixture
def started(folder, loader):
    """Starts versions that look at the folder only when they are told."""
    made = []

    def start(unverified=False):
        made.append(Versions(folder, unverified, poll_seconds=1000, load=loader))
        made[-1].start()
        return made[-1]

    yield start
    for versions in made:
        versions.stop()


def make(folder, number):
    make_version(folder, number)
    write_manifest(folder / str(number))


def look(versions):
    """A change counts when it has been seen twice."""
    for _ in range(2):
        versions.check()


def test_the_highest_version_is_served(folder, started, loader):
    for number in (2, 10, 9):
        make(folder, number)
    (folder / "models.config").touch()
    assert started().current.number == 10 and loader.calls == [10]


def test_a_version_with_leading_zeros_is_served_and_replaced(folder, started, loader, caplog):
    make(folder, "002")
    versions = started()
    assert versions.current.number == 2 and loader.calls == [2]
    make(folder, "0003")
    look(versions)
    assert versions.current.number == 3 and loader.calls == [2, 3]
    make(folder, "3")
    for _ in range(3):
        look(versions)
    (line,) = caplog.messages
    assert line == f"{folder}: 0003 and 3 are the same version. Remove one. Version 3 stays."
    shutil.rmtree(folder / "0003")
    look(versions)
    assert loader.calls == [2, 3, 3]


def test_two_folders_of_one_number_are_not_served(folder, started, loader):
    make(folder, "001")
    with pytest.raises(InputError, match="001 and 1 are the same version"):
        started()


@pytest.mark.parametrize("is_file", [True, False])
def test_a_highest_version_without_a_saved_model_is_named(folder, started, caplog, is_file):
    """TensorFlow Serving takes it, too, and then serves nothing."""
    versions = started()
    (folder / "99").touch() if is_file else (folder / "99").mkdir()
    message = f"{folder / '99'}: holds no SavedModel, but a server takes the highest version."
    look(versions)
    assert caplog.messages == [f"{message} Remove it. Version 1 stays."]
    with pytest.raises(InputError, match=re.escape(message)):
        started(unverified=True)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "no SavedModel there"),
        ("demo/1", r"1: is one version of a model. Give the folder of its versions: .*demo"),
    ],
)
def test_a_folder_without_versions_is_named(folder, path, message):
    with pytest.raises(InputError, match=message):
        Versions(folder.parent / path).start()


def test_a_first_version_that_cannot_be_served_is_an_error(folder, started, loader):
    (folder / "1" / "saved_model.pb").write_text("broken")
    for unverified in (False, True):
        with pytest.raises(InputError, match=r"saved_model.pb: was changed after the export"):
            started(unverified)
    assert not loader.calls
    write_manifest(folder / "1")
    with pytest.raises(InputError, match=r"1: cannot be served \(Could not find variable\)\. Copy"):
        started()
    make_version(folder, 1)
    (folder / "1" / manifest.EXTRA / manifest.MANIFEST).unlink()
    with pytest.raises(InputError, match=r"no intact manifest.*--unverified\."):
        started()
    assert started(unverified=True).current.number == 1


def test_an_export_is_warmed_up_by_its_records(echo, monkeypatch):
    ran = []
    run = SavedModelSession.run
    monkeypatch.setattr(
        SavedModelSession, "run", lambda self, *request: ran.append(request) or run(self, *request)
    )
    versions = Versions(echo)
    versions.start()
    versions.stop()
    records = list(tf.data.TFRecordDataset(str(echo / "1" / WARM_UP)).as_numpy_iterator())
    assert len(ran) == len(records) and {name for name, _ in ran} >= {"serving_default"}


def test_a_new_version_takes_the_place_and_the_old_one_is_freed(folder, started, loader):
    versions = started()
    used = versions.current
    make(folder, 2)
    look(versions)
    assert versions.current.number == 2
    versions.check()
    assert 1 in loader.loaded, "a request still uses it"
    del used
    versions.check()
    assert dict(loader.loaded).keys() == {2} and loader.calls == [1, 2]


def test_a_version_that_is_being_copied_is_waited_for(folder, started, loader):
    versions = started()
    make(folder, 2)
    for number in range(3):
        (folder / "2" / "variables").write_text("x" * number)
        versions.check()
    assert loader.calls == [1] and versions.current.number == 1


def test_a_broken_version_is_reported_once_and_tried_again(
    folder, started, loader, caplog, monkeypatch
):
    versions = started()
    make(folder, 2)
    (folder / "2" / "saved_model.pb").write_text("broken")
    with caplog.at_level(logging.INFO, "tf_transformer"):
        look(versions)
        look(versions)
    (line,) = caplog.messages
    assert "2/saved_model.pb: was changed" in line and line.endswith("Version 1 stays.")
    write_manifest(folder / "2")
    look(versions)
    assert "cannot be served (Could not find variable)" in caplog.messages[-1]
    look(versions)
    assert loader.calls == [1, 2], "nothing changed"
    # After a while, since the reason may have been a passing one.
    clock = versions_file.time.monotonic() + 61
    monkeypatch.setattr(versions_file.time, "monotonic", lambda: clock)
    look(versions)
    assert loader.calls == [1, 2, 2] and versions.current.number == 1
    shutil.rmtree(folder / "2")
    look(versions)
    assert loader.calls == [1, 2, 2], "what serves is not loaded again"


def test_a_version_that_is_exported_again_is_loaded_again(folder, started, loader, caplog):
    versions = started()
    shutil.rmtree(folder / "1")
    make(folder, 1)
    look(versions)
    assert loader.calls == [1, 1]
    (folder / "1" / "saved_model.pb").write_text("changed")
    look(versions)
    assert versions.current.number == 1, "what is loaded goes on"
    assert "was changed" in caplog.text


def test_removing_a_version_goes_back_and_the_last_one_stays(folder, started, loader):
    make(folder, 2)
    versions = started()
    shutil.rmtree(folder / "2")
    look(versions)
    assert versions.current.number == 1
    shutil.rmtree(folder)
    look(versions)
    assert versions.current.number == 1 and loader.calls == [2, 1]


def test_versions_come_and_go_and_no_request_fails(tmp_path, loader):
    with serving(tmp_path, load=loader) as (server, _):
        folder = tmp_path / "demo"
        stop = threading.Event()
        seen = []

        def work():
            while not stop.is_set():
                status, texts = translate(server, "a", "b")
                assert status == 200, texts
                assert texts in [[f"{n} A", f"{n} B"] for n in range(1, 6)]
                seen.append(texts[0])

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            workers = [pool.submit(work) for _ in range(8)]
            try:
                for number in (2, 3, 5):
                    make_version(folder, number)
                    eventually(lambda n=number: ask(server, "/healthz")[2]["version"] == n)
                    count = len(seen)
                    eventually(lambda count=count: len(seen) > count + 20)
            finally:
                stop.set()
            for worker in workers:
                worker.result(20)
        eventually(lambda: dict(loader.loaded).keys() == {5})
        assert set(seen) >= {"2 A", "3 A", "5 A"}
        assert ask(server, f"{MODEL}/versions/5")[0] == 200
        assert ask(server, f"{MODEL}/versions/3")[0] == 404
