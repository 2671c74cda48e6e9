"""The client: against the local server, and against servers that fail."""

import concurrent.futures
import itertools
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import types

import model_servers
import numpy as np
import pytest
import stub_server
import urllib3.util.retry
from commands import run_python
from hypothesis import given, settings
from hypothesis import strategies as st
from model_servers import Answer, Broken, Late

from tf_transformer import serving
from tf_transformer.inference.results import TargetProbability
from tf_transformer.serving import LocalServer
from tf_transformer.serving import client as client_file

ROOT = pathlib.Path(__file__).parents[1]
UNUSUAL = ["", "\0", "a\0", "é\u202e", "🙂", "a\nb", '"\\', "</s>", "\ufeff"]
CLIENTS = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8").partition("\n## Clients\n")[2]
EXAMPLES = re.findall(r"```(sh|python)\n(.*?)```", CLIENTS.partition("\n## ")[0], re.DOTALL)
assert EXAMPLES


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The local server of a stub, which runs each request alone, and that stub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tf_transformer.serving.batcher.MAX_TEXTS", 0)
        with stub_server.serving(tmp_path_factory.mktemp("stub")) as local:
            yield local


@pytest.fixture
def of_local(local):
    """A client of it."""
    with serving.Client(local[0].url) as client:
        yield client


@pytest.fixture(scope="module")
def by_rest():
    with model_servers.rest_server() as server:
        yield server


@pytest.fixture
def scripted(by_rest):
    """The scripted server, with nothing noted."""
    by_rest.requests.clear()
    by_rest.script.clear()
    return by_rest


@pytest.fixture
def client(scripted):
    with serving.Client(scripted.url) as client:
        yield client


@pytest.fixture
def waits(monkeypatch):
    """What urllib3 would have slept."""
    waits = []
    clock = types.SimpleNamespace(sleep=waits.append)
    monkeypatch.setattr(urllib3.util.retry, "time", clock)
    return waits


def error_of(kind, function, *arguments):
    """The error that a call raises, which must be one line."""
    with pytest.raises(kind) as caught:
        function(*arguments)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700
    return str(caught.value)


# What each method returns

RESULTS = [
    ("translate", ["guten tag"], "GUTEN TAG"),
    ("translate", [UNUSUAL], [text.upper() for text in UNUSUAL]),
    ("translate", [["a\ud800b", "\udfff"]], ["A?B", "?"]),
    ("translate_nbest", [["abc", "a"]], [  # without the missing hypotheses
        [("ABC", -0.25, 3, False, (), None), ("ABC!", -0.5, 4, False, (), None),
         ("ABC!!", -1.75, 5, False, (), None)],
        [("A", -0.25, 1, False, (), None)],
    ]),
    ("translate_document", [["a. b. c.", "d", ""]], [  # without the padding of sentences
        ("A. B. C.", ["a.", "b.", "c."], ["A.", "B.", "C."], False),
        ("D", ["d"], ["D"], False),
        ("", [], [], False),
    ]),
    ("score", ["x", "c" * 210], TargetProbability(-210.0, 2, True)),
    ("score", [[], []], []),
]  # fmt: skip


@pytest.mark.parametrize(("method", "arguments", "expected"), RESULTS)
def test_a_result_for_a_text_and_a_list_for_a_list(of_local, method, arguments, expected):
    assert getattr(of_local, method)(*arguments) == expected


def test_a_version_is_a_part_of_each_request(local):
    with serving.Client(local[0].url + "/", version=1) as client:
        assert client.translate("a") == "A"
        (status,) = client.status()
        assert (status["version"], status["state"]) == ("1", "AVAILABLE")
        signatures = client.metadata()["metadata"]["signature_def"]["signature_def"]
        assert signatures.keys() == stub_server.ROWS.keys()
    with serving.Client(local[0].url, version=4) as client:
        message = error_of(serving.NotFoundError, client.translate, "a")
        assert message.startswith(f"{local[0].url}/versions/4: status 404: nothing is served")


def near(found, expected):
    """Whether results are the same, their numbers nearly."""
    if isinstance(expected, np.ndarray | float):
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        return np.shape(found) == np.shape(expected) and np.allclose(found, expected, atol=1e-4)
    if isinstance(expected, list | tuple) and len(found) == len(expected):
        return all(map(near, found, expected))
    return found == expected


@pytest.fixture(scope="module")
def served(exported_version, tmp_path_factory):
    """The local server of an export."""
    folder = tmp_path_factory.mktemp("served") / "demo"
    shutil.copytree(exported_version, folder / "3")
    with LocalServer(folder) as server:
        yield server


def test_an_export_answers_as_its_translator(served, loaded, sentences):
    texts = sentences[:12] + UNUSUAL
    long = "a b " * 50
    sources, targets = [*sentences[:8], "", "a", long], [*sentences[1:9], "a", "", long]
    with serving.Client(served.url, batch_size=8) as client:
        assert client.translate(texts) == loaded(texts)
        documents = client.translate_document(texts)
        assert [each.translation for each in documents] == loaded.document(texts)
        for pairs in ((sources, targets), (["a b"], [""])):
            assert near(client.score(*pairs), loaded.score(*pairs, batch_size=3))
            assert near(client.align(*pairs), loaded.align(*pairs, batch_size=3))
        best = loaded.n_best(texts, 4, beam_size=4)
        expected = [[(h.text, h.score, h.length) for h in row] for row in best]
        found = client.translate_nbest(texts)
        assert near([[each[:3] for each in row] for row in found], expected)


@pytest.mark.parametrize(("language", "code"), EXAMPLES)
def test_the_examples_of_the_documentation(served, tmp_path, language, code):
    code = code.replace("http://127.0.0.1:8501", served.address)
    assert "850" not in code.replace(str(served.address), "")
    command = {"sh": ["sh", "-ec", code], "python": [sys.executable, "-c", code]}[language]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    with serving.Client(served.url) as client:
        expected = client.translate("Wo kann ich Brot kaufen?")
    assert expected in done.stdout


# Batches


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), max_size=60),
    batch_size=st.integers(1, 9),
    characters=st.integers(1, 40),
    connections=st.integers(1, 4),
)
def test_results_come_in_order_and_requests_are_bounded(
    local, lengths, batch_size, characters, connections
):
    server, model = local
    model.batches.clear()
    texts = [f"{index}:" + "a" * length for index, length in enumerate(lengths)]
    client = serving.Client(server.url, batch_size=batch_size, connections=connections)
    with pytest.MonkeyPatch.context() as patch, client:
        patch.setattr(client_file, "_REQUEST_CHARACTERS", characters)
        assert client.translate(texts) == [text.upper() for text in texts]
        assert all(len(b) == 1 or len(b"".join(b)) <= characters for b in model.batches)
        expected = [-float(len(text)) for text in texts]
        assert [score.log_prob for score in client.score(texts, texts)] == expected
    assert all(1 <= len(batch) <= batch_size for batch in model.batches)


def test_a_stream_reads_only_a_little_ahead(client):
    read = []
    texts = (read.append(index) or f"text {index}" for index in range(100_000))
    stream = client.stream(texts)
    assert list(itertools.islice(stream, 3)) == ["TEXT 0", "TEXT 1", "TEXT 2"]
    assert len(read) <= 3 * 16 * 32  # groups of 16 batches of 32
    stream.close()


def test_requests_at_a_time_are_as_many_as_connections():
    together = threading.Barrier(3)

    class Counted(Answer):
        def send(self, handler):
            together.wait(10)  # three must be under way
            super().send(handler)

    with model_servers.rest_server() as server:
        server.script = [Counted(200, {"outputs": ["x"]}) for _ in range(12)]
        with serving.Client(server.url, batch_size=1, connections=3) as client:
            with concurrent.futures.ThreadPoolExecutor(6) as callers:
                assert [*callers.map(client.translate, [["a", "a"]] * 6)] == [["x", "x"]] * 6
        assert len(server.requests) == 12
        assert server.connections == 3  # and are used again


# Retries


def test_a_busy_server_is_asked_again_later_and_later(client, scripted, waits):
    scripted.script = [
        Answer(502, {}), Answer(429, {}, Retry_After="7"), Answer(503, {}, Retry_After="3600"),
    ]  # fmt: skip
    assert client.translate("a") == "A"
    assert len(scripted.requests) == 4
    first, second = waits[-2:]
    assert 1 <= first <= 1.5 and 2 <= second <= 2.5, "clients should not come back together"


@pytest.mark.parametrize(
    ("status", "kind", "may_pass"),
    [
        (400, serving.BadRequestError, False),
        (404, serving.NotFoundError, False),
        (429, serving.OverloadedError, True),
        (500, serving.UnexpectedAnswerError, False),
        (502, serving.UnreachableError, True),
        (503, serving.OverloadedError, True),
        (504, serving.ServingTimeoutError, False),
    ],
)
@pytest.mark.parametrize("retries", [0, 2])
def test_only_what_may_pass_is_asked_again_and_retries_end(
    scripted, waits, status, kind, may_pass, retries
):
    with serving.Client(scripted.url, retries=retries) as client:
        if may_pass:
            scripted.refuse(status, "the queue\n  is full", times=retries)
            assert client.translate("a") == "A"
            scripted.requests.clear()
        scripted.refuse(status, "the queue\n  is full", times=9)
        message = error_of(kind, client.translate, "a")
    assert message.startswith(f"{scripted.url}: ") and message.endswith(": the queue is full")
    assert len(scripted.requests) == 1 + may_pass * retries


@pytest.mark.parametrize("answer", [Broken(0, b""), Broken(200, {"outputs": ["A"]})])
def test_a_broken_connection_is_made_again(client, scripted, waits, answer):
    scripted.script = [answer]
    assert client.translate("a") == "A"
    scripted.script = [answer] * 9
    error_of(serving.UnreachableError, client.translate, "a")
    assert len(scripted.requests) == 2 + 5


# Errors


def test_without_a_server_the_error_says_so(waits):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/models/demo"
        with serving.Client(url, retries=1, timeout=20) as client:
            message = error_of(serving.UnreachableError, client.translate, "a")
    assert message.startswith(f"{url}: ")


def test_a_slow_answer_is_a_time_out_and_not_asked_for_again(scripted):
    scripted.script = [Late(0, b"")]
    with serving.Client(scripted.url, timeout=0.3) as client:
        message = error_of(serving.ServingTimeoutError, client.translate, "a")
    assert "no answer in time" in message
    assert len(scripted.requests) == 1


@pytest.mark.parametrize(
    ("status", "content", "part"),
    [
        (301, b"", "status 301"),
        (200, b"\xff" * 9999, "status 200"),
        (200, [], "status 200"),
        (200, {"outputs": ["A", "B"]}, "not as expected"),
        (200, {"predictions": ["A"]}, "not as expected"),
        (200, {"outputs": {}}, "not as expected"),
        (200, {"outputs": [5, 6, 7]}, "not as expected"),
        (200, {"outputs": {"translation": "A"}}, "not as expected"),
        (200, {"outputs": {"text": ["A"]}}, "not as expected"),
    ],
)
def test_an_answer_of_another_server_is_an_error(client, scripted, status, content, part):
    scripted.script = [Answer(status, content, Location="http://127.0.0.1:1/")]
    message = error_of(serving.UnexpectedAnswerError, client.translate, ["a"] * 3)
    assert message.startswith(f"{scripted.url}: ") and part in message
    assert len(scripted.requests) == 1


def test_a_server_without_a_state_of_versions_is_an_error(client, monkeypatch):
    monkeypatch.setattr(client._server, "request", lambda method: {"status": "UP"})
    assert "no state of versions" in error_of(serving.UnexpectedAnswerError, client.status)


def test_hypotheses_of_a_wrong_shape_are_an_error(client, scripted):
    outputs = {"translations": [["A"]], "scores": [[-1.0, -2.0]], "lengths": [[1]]}
    scripted.script = [Answer(200, {"outputs": {**outputs, "truncated": [False]}})]
    error_of(serving.UnexpectedAnswerError, client.translate_nbest, "a")


# Arguments


def test_a_text_is_no_list_of_letters(client, scripted):
    with pytest.raises(TypeError, match="read letter by letter"):
        client.score(["a"], "b")
    with pytest.raises(TypeError, match="read letter by letter"):
        list(client.stream("abc"))
    with pytest.raises(ValueError, match="as many targets as sources"):
        client.align(["a", "b"], ["c"])
    for texts in (b"a", [1], ["a", None]):
        with pytest.raises(TypeError, match="texts must be str; received a value of type"):
            client.translate(texts)
    assert scripted.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8501", "http://host:8501", "http://host/v1/models/demo:predict",
        "http://host/v1/models/demo/versions/3", "grpc://host:1/demo",
        "http://me:secret@host/v1/models/demo",
    ],
)  # fmt: skip
def test_a_url_that_names_no_model_is_refused(url):
    with pytest.raises(ValueError, match="the URL must") as caught:
        serving.Client(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"connections": 0}, {"retries": -1}])
def test_numbers_with_which_a_client_would_hang_are_refused(wrong):
    with pytest.raises(ValueError, match="connections must be at least 1"):
        serving.Client("http://host/v1/models/demo", **wrong)


def test_rest_loads_no_tensorflow(local):
    code = (
        "import sys, tf_transformer.serving as serving\n"
        f"with serving.Client({local[0].url!r}) as client:\n"
        "    print(client.translate(['a', 'b']), client.align('a', 'b').attention.shape)\n"
        "heavy = {'tensorflow', 'keras', 'grpc', 'tensorflow_text', 'requests'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    printed = run_python("-c", code, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert printed == "['A', 'B'] (1, 2)\n[]\n"
