"""The client: by REST against the local server, by gRPC, and against servers that fail."""

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

import grpc
import model_servers
import numpy as np
import pytest
import stub_server
import urllib3.util.retry
from hypothesis import given, settings
from hypothesis import strategies as st
from model_servers import Answer, Broken, Late

from tf_transformer import serving
from tf_transformer.inference.results import AlignedPair, TargetProbability
from tf_transformer.serving import LocalServer
from tf_transformer.serving import client as client_file

ROOT = pathlib.Path(__file__).parents[1]
UNUSUAL = ["", "\0", "a\0", "é\u202e", "🙂", "a\nb", '"\\', "</s>", "\ufeff"]
CODE = grpc.StatusCode
CLIENTS = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8").partition("\n## Clients\n")[2]
EXAMPLES = re.findall(r"```(sh|python)\n(.*?)```", CLIENTS.partition("\n## ")[0], re.DOTALL)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The local server of a stub, which runs each request alone, and that stub."""
    with stub_server.serving(tmp_path_factory.mktemp("stub"), batching=False) as local:
        yield local


@pytest.fixture(scope="module")
def by_grpc():
    with model_servers.grpc_server(stub_server.StubModel()) as server:
        yield server


@pytest.fixture
def grpc_server(by_grpc):
    by_grpc.requests.clear()
    by_grpc.script.clear()
    return by_grpc


@pytest.fixture(params=["rest", "grpc"])
def either(request, local, by_grpc):
    """A client by REST and one by gRPC: what it does is the same."""
    with serving.Client({"rest": local[0], "grpc": by_grpc}[request.param].url) as client:
        yield client


@pytest.fixture(scope="module")
def rest():
    with model_servers.rest_server() as server:
        yield server


@pytest.fixture
def scripted(rest):
    """The scripted server, with nothing noted."""
    rest.requests.clear()
    rest.script.clear()
    return rest


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


# What each method returns, by both ways


def test_a_text_for_a_text_and_a_list_for_a_list(either):
    assert either.translate("guten tag") == "GUTEN TAG"
    assert either.translate(text for text in "cd") == ["C", "D"]
    assert either.translate(UNUSUAL) == [text.upper() for text in UNUSUAL]
    assert either.translate(["a\ud800b", "\udfff"]) == ["A?B", "?"]
    assert either.translate([]) == either.translate_nbest(iter(())) == either.score([], []) == []


def test_n_best_without_the_missing_hypotheses(either):
    assert either.translate_nbest(["abc", "a"]) == [
        [serving.Hypothesis("ABC", -0.25, 3, False), ("ABC!", -0.5, 4, False),
         ("ABC!!", -1.75, 5, False)],
        [("A", -0.25, 1, False)],
    ]  # fmt: skip
    assert either.translate_nbest("a" * 201)[0].truncated is True


def test_documents_without_padding(either):
    first, second, third = either.translate_document(["a. b. c.", "d", ""])
    assert first == ("A. B. C.", ["a.", "b.", "c."], ["A.", "B.", "C."], False)
    assert second.sentences == ["d"] and second.sentence_translations == ["D"]
    assert third == ("", [], [], False)


def test_scores_of_pairs(either):
    found = either.score(["x", "y"], ["a b", "c" * 210])
    assert found == [TargetProbability(-3.0, 3, False), (-210.0, 2, True)]
    assert either.score("x", "a") == (-1.0, 2, False)


@pytest.mark.parametrize("target", ["", "x"])
def test_alignments_have_their_real_lengths(either, target):
    found = either.align(["a b c", "d", "a b"], [target, "y z", ""])
    assert isinstance(found[0], AlignedPair)
    words = [f"▁{target}"] if target else []
    assert [each.source_subwords for each in found][:2] == [
        ["▁a", "▁b", "▁c", "</s>"],
        ["▁d", "</s>"],
    ]
    assert [each.target_subwords for each in found] == [words, ["▁y", "▁z"], []]
    assert [each.attention.shape for each in found] == [(len(words), 4), (2, 2), (0, 3)]
    for each in found:
        assert each.attention.dtype == np.float32
        np.testing.assert_allclose(each.attention.sum(1), 1, atol=1e-6)


def test_status_and_metadata(local):
    with serving.Client(local[0].url) as client:
        (status,) = client.status()
        assert (status["version"], status["state"]) == ("1", "AVAILABLE")
        signatures = client.metadata()["metadata"]["signature_def"]["signature_def"]
        assert signatures.keys() == stub_server.ROWS.keys()


def test_a_version_is_a_part_of_each_request(local, grpc_server):
    with serving.Client(local[0].url + "/", version=1) as client:
        assert client.translate("a") == "A" and client.status() and client.metadata()
    with serving.Client(local[0].url, version=4) as client:
        message = error_of(serving.NotFoundError, client.translate, "a")
        assert message.startswith(f"{local[0].url}/versions/4: status 404: nothing is served")
    with serving.Client(grpc_server.url, version=3) as client:
        assert client.translate("a") == "A"
    (request,) = grpc_server.requests
    assert request.model_spec.name == "demo" and request.model_spec.version.value == 3


def near(found, expected):
    """Whether results are the same, their numbers nearly."""
    if isinstance(expected, np.ndarray | float):
        return np.shape(found) == np.shape(expected) and np.allclose(found, expected, atol=1e-4)
    if isinstance(expected, list | tuple) and len(found) == len(expected):
        return all(map(near, found, expected))
    return found == expected


@pytest.fixture(scope="module")
def served(exported_version, tmp_path_factory):
    """The local server of an export."""
    folder = tmp_path_factory.mktemp("served") / "demo"
    shutil.copytree(exported_version, folder / "3")
    with LocalServer(folder, unverified=True) as server:
        yield server


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_an_export_answers_as_its_translator(served, loaded, sentences, way):
    texts = sentences[:12] + UNUSUAL
    sources, targets = [*sentences[:8], "", "a"], [*sentences[1:9], "a", ""]
    with model_servers.grpc_server(served.versions.current.model) as by_grpc:
        with serving.Client(served.url if way == "rest" else by_grpc.url, batch_size=8) as client:
            assert client.translate(texts) == loaded(texts)
            documents = client.translate_document(texts)
            assert [each.translation for each in documents] == loaded.document(texts)
            assert near(client.score(sources, targets), loaded.score(sources, targets))
            assert near(client.align(sources, targets), loaded.align(sources, targets))
            best = loaded.n_best(texts, 4, beam_size=4)
            expected = [[(h.text, h.score, h.length) for h in row] for row in best]
            found = client.translate_nbest(texts)
            assert near([[each[:3] for each in row] for row in found], expected)


@pytest.mark.parametrize(("language", "code"), EXAMPLES)
def test_the_examples_of_the_documentation(served, tmp_path, language, code):
    with model_servers.grpc_server(stub_server.StubModel()) as by_grpc:
        code = code.replace("http://127.0.0.1:8501", served.address)
        code = code.replace("grpc://127.0.0.1:8500/demo", by_grpc.url)
        assert "850" not in code.replace(str(served.address), "").replace(by_grpc.url, "")
        command = {"sh": ["sh", "-ec", code], "python": [sys.executable, "-c", code]}[language]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    with serving.Client(served.url) as client:
        expected = client.translate("Wo ist der Bahnhof?")
    assert ("WO IST DER BAHNHOF?" if by_grpc.requests else expected) in done.stdout


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


@pytest.mark.parametrize("threads", [1, 6])
def test_requests_at_a_time_are_as_many_as_connections(threads):
    together = threading.Barrier(3)

    class Counted(Answer):
        def send(self, handler):
            together.wait(10)  # three must be under way
            super().send(handler)

    with model_servers.rest_server() as server:
        server.script = [Counted(200, {"outputs": ["x"]}) for _ in range(12)]
        with serving.Client(server.url, batch_size=1, connections=3) as client:
            callers = [
                threading.Thread(target=client.translate, args=(["a"] * (12 // threads),))
                for _ in range(threads)
            ]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
        assert len(server.requests) == 12
        assert server.connections == 3  # and are used again


# Retries


def test_a_busy_server_is_asked_again_when_it_says(client, scripted, waits):
    scripted.script = [
        Answer(502, {}), Answer(429, {}, Retry_After="7"), Answer(503, {}, Retry_After="3600"),
    ]  # fmt: skip
    assert client.translate("a") == "A"
    assert len(scripted.requests) == 4
    *_, first, second = waits
    assert 7 < first <= 10.5, "clients should not come back together"
    assert 30 < second <= 45


@pytest.mark.parametrize("retries", [0, 4])
def test_retries_end(scripted, waits, retries):
    scripted.script = [Answer(503, {"error": "queue is full"})] * 9
    with serving.Client(scripted.url, retries=retries) as client:
        message = error_of(serving.OverloadedError, client.translate, "a")
    assert message == f"{scripted.url}: status 503: queue is full"
    assert len(scripted.requests) == retries + 1


@pytest.mark.parametrize("answer", [Broken(0, b""), Broken(200, {"outputs": ["A"]})])
def test_a_broken_connection_is_made_again(client, scripted, waits, answer):
    scripted.script = [answer]
    assert client.translate("a") == "A"
    scripted.script = [answer] * 9
    error_of(serving.UnreachableError, client.translate, "a")
    assert len(scripted.requests) == 2 + 5


@pytest.mark.parametrize("code", [CODE.UNAVAILABLE, CODE.RESOURCE_EXHAUSTED])
def test_by_grpc_a_busy_server_is_asked_again(grpc_server, code):
    grpc_server.script = [(code, "full")] * 2
    with serving.Client(grpc_server.url) as client:
        assert client.translate("a") == "A"
    assert len(grpc_server.requests) == 3
    grpc_server.script = [(code, "the queue\nis full")] * 9
    with serving.Client(grpc_server.url, retries=1) as client:
        message = error_of(serving.OverloadedError, client.translate, "a")
    assert message == f"{grpc_server.url}: {code.name}: the queue is full"
    assert len(grpc_server.requests) == 3 + 2


# Errors


@pytest.mark.parametrize("url", ["http://{}/v1/models/demo", "grpc://{}/demo"])
def test_without_a_server_the_error_says_so(url, waits):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = url.format(f"127.0.0.1:{taken.getsockname()[1]}")
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
    ("status", "content", "kind", "part"),
    [
        (400, {"error": "bad\n  text"}, serving.BadRequestError, "status 400: bad text"),
        (404, b"<html>\nNot here</html>", serving.NotFoundError, "Not here</html>"),
        (500, {"error": "an operation failed"}, serving.UnexpectedAnswerError, "status 500: an op"),
        (301, b"", serving.UnexpectedAnswerError, "status 301"),
        (200, b"\xff" * 9999, serving.UnexpectedAnswerError, "status 200"),
        (200, [], serving.UnexpectedAnswerError, "status 200"),
        (200, {"outputs": ["A", "B"]}, serving.UnexpectedAnswerError, "serving_default"),
        (200, {"predictions": ["A"]}, serving.UnexpectedAnswerError, "not as expected"),
    ],
)
def test_other_answers_are_errors_that_name_the_server(
    client, scripted, status, content, kind, part
):
    scripted.script = [Answer(status, content, Location="http://127.0.0.1:1/")]
    message = error_of(kind, client.translate, "a")
    assert message.startswith(f"{scripted.url}: ") and part in message
    assert len(scripted.requests) == 1


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        ["A"],
        {"translations": [["A"]], "scores": [[-1.0, -2.0]], "lengths": [[1]], "truncated": [False]},
        {"translations": [["A"]], "scores": [["x"]], "lengths": [[1]], "truncated": [False]},
        {"translations": ["A"], "scores": [-1.0], "lengths": [1], "truncated": [False]},
        {"translations": [], "scores": [], "lengths": [], "truncated": []},
    ],
)
def test_outputs_of_a_wrong_shape_are_an_error(client, scripted, outputs):
    scripted.script = [Answer(200, {"outputs": outputs})]
    error_of(serving.UnexpectedAnswerError, client.translate_nbest, "a")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (CODE.INVALID_ARGUMENT, serving.BadRequestError),
        (CODE.NOT_FOUND, serving.NotFoundError),
        (CODE.INTERNAL, serving.UnexpectedAnswerError),
        (CODE.DEADLINE_EXCEEDED, serving.ServingTimeoutError),
    ],
)
def test_by_grpc_other_codes_are_errors_and_not_asked_again(grpc_server, code, kind):
    grpc_server.script = [(code, "because")]
    with serving.Client(grpc_server.url) as client:
        assert f"{code.name}: because" in error_of(kind, client.translate, "a")
    assert len(grpc_server.requests) == 1


def test_by_grpc_messages_of_megabytes_pass(grpc_server):
    # gRPC's own limit is 4 MB.
    text = "a" * 3_000_000
    with serving.Client(grpc_server.url) as client:
        assert client.translate_document(text).translation == text.upper()


# Arguments


def test_a_text_is_no_list_of_letters(client, scripted):
    with pytest.raises(TypeError, match="read letter by letter"):
        client.score(["a"], "b")
    with pytest.raises(TypeError, match="read letter by letter"):
        list(client.stream("abc"))
    with pytest.raises(ValueError, match="zip"):
        client.align(["a", "b"], ["c"])
    assert scripted.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8501", "http://host:8501", "http://host/v1/models/demo:predict",
        "http://host/v1/models/demo/versions/3", "grpc://host/demo", "grpc://host:1/v1/models/demo",
        "http://me:secret@host/v1/models/demo",
    ],
)  # fmt: skip
def test_a_url_that_names_no_model_is_refused(url):
    with pytest.raises(ValueError, match="the URL must") as caught:
        serving.Client(url)
    assert "secret" not in str(caught.value)


def test_rest_loads_no_tensorflow(local):
    code = (
        "import sys, tf_transformer.serving as serving\n"
        f"with serving.Client({local[0].url!r}) as client:\n"
        "    print(client.translate(['a', 'b']), client.align('a', 'b').attention.shape)\n"
        "heavy = {'tensorflow', 'keras', 'grpc', 'tensorflow_text', 'requests'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "['A', 'B'] (1, 2)\n[]\n", done.stderr
