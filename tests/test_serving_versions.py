"""The versions of a model that is served: which one is loaded, checked, replaced and kept."""

import concurrent.futures
import logging
import shutil
import threading
import time

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
from tensorflow_serving.apis import prediction_log_pb2

from tf_transformer.errors import InputError
from tf_transformer.export import manifest
from tf_transformer.serving.server.versions import Versions


def write_warm_up(version, *records):
    (version / manifest.EXTRA).mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(
        str(version / manifest.EXTRA / "tf_serving_warmup_requests")
    ) as writer:
        for record in records:
            writer.write(record)


def warm_up(texts, signature="serving_default", key="text"):
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.model_spec.signature_name = signature
    log.predict_log.request.inputs[key].CopyFrom(tf.make_tensor_proto(texts, tf.string))
    return log.SerializeToString()


@pytest.fixture
def folder(tmp_path):
    """A folder of versions with one, which has a manifest."""
    make_version(tmp_path / "demo", 1)
    write_manifest(tmp_path / "demo" / "1")
    return tmp_path / "demo"


class Loader:
    """Makes stubs of versions; `loaded` has them by number, the newest of each."""

    def __init__(self):
        self.loaded = {}
        self.calls = []

    def __call__(self, folder):
        number = int(folder.name)
        self.calls.append(number)
        content = (folder / "saved_model.pb").read_text()
        if content == "broken":
            raise RuntimeError("Could not find variable\nand much more")
        self.loaded[number] = StubModel(f"{content} ")
        return self.loaded[number]


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


def look(versions):
    """A change counts when it is seen twice, and what is unused is closed by the next look."""
    for _ in range(3):
        versions.check()


def make(folder, number):
    make_version(folder, number)
    write_manifest(folder / str(number))


# Starting


def test_the_highest_version_is_served(folder, started, loader):
    for number in (2, 10, 9):
        make(folder, number)
    (folder / "models.config").touch()
    versions = started()
    assert versions.current.number == 10 and loader.calls == [10]
    assert versions.states() == {10: ("AVAILABLE", "")}
    assert versions.name == "demo"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "no SavedModel there"),
        ("demo/1", r"1: is one version of a model. Give the folder of its versions: .*demo"),
        ("", "no SavedModel there"),
    ],
)
def test_a_folder_without_versions_is_named(folder, path, message):
    with pytest.raises(InputError, match=message):
        Versions(folder.parent / path).start()


def test_a_first_version_that_is_broken_is_not_served(folder, started):
    (folder / "1" / "saved_model.pb").write_text("broken")
    write_manifest(folder / "1")
    with pytest.raises(InputError) as caught:
        started()
    assert str(caught.value) == (
        f"{folder}/1: cannot be served (Could not find variable). "
        f"Copy it again, or write it again with tf-transformer export."
    )


def test_the_highest_version_is_not_passed_over(folder, started):
    (folder / "2").mkdir()
    with pytest.raises(InputError, match="2: has no manifest"):
        started()


# Verifying


def test_a_version_that_was_changed_is_never_served(folder, started, loader):
    (folder / "1" / "saved_model.pb").write_text("2")
    for unverified in (False, True):
        with pytest.raises(InputError, match=r"saved_model.pb: was changed after the export"):
            started(unverified)
    assert not loader.calls


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_a_version_without_digests_is_served_if_told(folder, started, content):
    path = folder / "1" / manifest.EXTRA / manifest.MANIFEST
    path.unlink()
    if content:
        path.write_text(content)
    with pytest.raises(InputError, match=r"manifest.* Or serve it as it is with --unverified\."):
        started()
    assert started(unverified=True).current.number == 1


# Warming up


def test_the_recorded_requests_warm_it_up(folder, started, loader):
    write_warm_up(folder / "1", warm_up(["a", "b"]), warm_up(["c"], ""), warm_up(["d"], "other"))
    write_manifest(folder / "1")
    started()
    assert loader.loaded[1].batches == [[b"a", b"b"], [b"c"], [b"d"]]


def test_without_records_every_signature_runs_once(folder, monkeypatch, started):
    ran = []
    monkeypatch.setattr(StubModel, "run", lambda self, name, inputs: ran.append((name, inputs)))
    started()
    assert {name for name, _ in ran} == set(StubModel.signatures)
    assert all(len(texts) == 1 for _, inputs in ran for texts in inputs.values())


@pytest.mark.parametrize(
    "records",
    [[b"no log"], [warm_up(["fail"])], [warm_up(["a"])] * 1001],
    ids=["unreadable", "fails", "too many"],
)
def test_a_bad_record_is_refused(folder, started, loader, records):
    write_warm_up(folder / "1", *records)
    write_manifest(folder / "1")
    with pytest.raises(InputError, match="1: cannot be served"):
        started()
    assert loader.loaded[1].closed


def test_a_damaged_file_of_records_is_refused(folder, started):
    write_warm_up(folder / "1", warm_up(["a"]))
    path = folder / "1" / manifest.EXTRA / "tf_serving_warmup_requests"
    path.write_bytes(path.read_bytes()[:-3])
    write_manifest(folder / "1")
    with pytest.raises(InputError, match="1: cannot be served"):
        started()


# Replacing


def test_a_new_version_takes_the_place_and_the_old_one_ends_with_its_last_request(
    folder, started, loader
):
    versions = started()
    used = versions.acquire()
    make(folder, 2)
    versions.check()
    assert versions.current.number == 1, "it may still be written"
    look(versions)
    assert versions.current.number == 2
    assert versions.states() == {2: ("AVAILABLE", ""), 1: ("UNLOADING", "")}
    assert not loader.loaded[1].closed
    assert versions.acquire(1) is None
    versions.release(used)
    look(versions)
    assert loader.loaded[1].closed and not loader.loaded[2].closed
    assert versions.states() == {2: ("AVAILABLE", ""), 1: ("END", "")}
    assert loader.calls == [1, 2]


def test_a_version_that_is_being_copied_is_waited_for(folder, started, loader):
    versions = started()
    make(folder, 2)
    for number in range(3):
        (folder / "2" / "variables").write_text("x" * number)
        versions.check()
    assert loader.calls == [1]
    write_manifest(folder / "2")
    look(versions)
    assert versions.current.number == 2


def test_a_broken_version_is_reported_once_and_tried_again_when_it_changes(
    folder, started, loader, caplog
):
    versions = started()
    make(folder, 2)
    (folder / "2" / "saved_model.pb").write_text("broken")
    with caplog.at_level(logging.INFO, "tf_transformer"):
        look(versions)
        look(versions)
    (line,) = caplog.messages
    assert "2/saved_model.pb: was changed" in line and line.endswith("Version 1 stays.")
    assert "\n" not in line
    state, error = versions.states()[2]
    assert state == "END" and "was changed" in error
    write_manifest(folder / "2")
    look(versions)
    assert "cannot be served (Could not find variable)" in versions.states()[2][1]
    assert versions.current.number == 1 and not loader.loaded[1].closed
    shutil.rmtree(folder / "2")
    look(versions)
    assert loader.calls == [1, 2], "what serves is not loaded again"
    make(folder, 2)
    look(versions)
    assert versions.current.number == 2
    assert versions.states()[2] == ("AVAILABLE", "")


def test_a_version_that_is_exported_again_is_loaded_again(folder, started, loader):
    versions = started()
    first = loader.loaded[1]
    shutil.rmtree(folder / "1")
    make(folder, 1)
    look(versions)
    assert loader.calls == [1, 1]
    assert first.closed and not loader.loaded[1].closed
    assert versions.states() == {1: ("AVAILABLE", "")}
    (folder / "1" / "saved_model.pb").write_text("changed")
    look(versions)
    state, error = versions.states()[1]
    assert state == "AVAILABLE" and "was changed" in error, "what is loaded goes on"


def test_removing_a_version_goes_back_and_the_last_one_stays(folder, started, loader):
    make(folder, 2)
    versions = started()
    shutil.rmtree(folder / "2")
    look(versions)
    assert versions.current.number == 1
    shutil.rmtree(folder)
    look(versions)
    assert versions.current.number == 1 and not loader.loaded[1].closed
    assert loader.calls == [2, 1]


def test_stopping_closes_what_is_loaded(folder, started, loader):
    versions = started()
    versions.stop()
    assert loader.loaded[1].closed
    assert versions.current is None and versions.acquire() is None


# Under load


def test_versions_come_and_go_and_no_request_fails(tmp_path, loader):
    numbers = range(2, 8)
    with serving(tmp_path, load=loader) as (server, _):
        folder = tmp_path / "demo"
        stop = threading.Event()
        seen = []

        def work():
            while not stop.is_set():
                status, texts = translate(server, "a", "b")
                assert status == 200, texts
                assert texts in [[f"{n} A", f"{n} B"] for n in (1, *numbers)]
                seen.append(texts[0])

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            workers = [pool.submit(work) for _ in range(8)]
            try:
                for number in numbers:
                    if number == 4:
                        (folder / "4").mkdir()
                        (folder / "4" / "saved_model.pb").write_text("broken")
                        eventually(lambda: "4" in states(server))
                        eventually(lambda: states(server)["4"]["state"] == "END")
                        assert ask(server, "/healthz")[2]["version"] == 3
                        error = states(server)["4"]["status"]
                        assert error["error_code"] == "DATA_LOSS"
                        assert "Could not find variable" in error["error_message"]
                        shutil.rmtree(folder / "4")
                        continue
                    make_version(folder, number)
                    eventually(lambda n=number: ask(server, "/healthz")[2]["version"] == n)
                    count = len(seen)
                    eventually(lambda count=count: len(seen) > count + 20)
            finally:
                stop.set()
            for worker in workers:
                worker.result(20)
        eventually(lambda: all(loader.loaded[n].closed for n in (1, 2, 3, 5, 6)))
        assert not loader.loaded[7].closed
        assert {f"{n} A" for n in (1, 2, 3, 5, 6, 7)} >= set(seen) >= {"2 A", "5 A", "7 A"}
        assert ask(server, f"{MODEL}/versions/7")[0] == 200


def test_a_version_stays_while_a_batch_runs_that_nobody_waits_for(tmp_path, loader):
    with serving(tmp_path, load=loader, request_seconds=0.3) as (server, _):
        old = loader.loaded[1]
        assert translate(server, "wait")[0] == 504
        make_version(tmp_path / "demo", 2)
        eventually(lambda: translate(server, "a") == (200, ["2 A"]))
        time.sleep(0.2)  # ten looks at the folder
        assert states(server)["1"]["state"] == "UNLOADING"
        assert old.running and not old.closed
        old.go.set()
        eventually(lambda: old.closed)
        eventually(lambda: states(server)["1"]["state"] == "END")


def states(server):
    found = ask(server, MODEL)[2]["model_version_status"]
    return {state["version"]: state for state in found}
