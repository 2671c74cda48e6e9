"""The client against servers that play what real ones do, by REST and by gRPC."""

import itertools
import os
import pathlib
import socket
import subprocess
import sys
import threading
import types

import grpc
import model_servers
import numpy as np
import pytest
import urllib3.util.retry
from hypothesis import given, settings
from hypothesis import strategies as st
from model_servers import Answer, Closed, Late, Truncated

import tf_transformer
from tf_transformer import serving
from tf_transformer.inference.results import AlignedPair, TargetProbability
from tf_transformer.serving import client as client_file
from tf_transformer.serving.session import SavedModelSession

ROOT = pathlib.Path(tf_transformer.__file__).parents[1]
UNUSUAL = ["", "\0", "a\0", "é\u202e", "🙂", "a\nb", '"\\', "</s>", "\ufeff"]
CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def rest():
    with model_servers.rest_server() as server:
        yield server


@pytest.fixture(scope="module")
def by_grpc():
    with model_servers.grpc_server() as server:
        yield server


@pytest.fixture
def server(rest):
    """The scripted server, with nothing noted."""
    rest.requests.clear()
    rest.script.clear()
    return rest


@pytest.fixture
def grpc_server(by_grpc):
    by_grpc.requests.clear()
    by_grpc.script.clear()
    return by_grpc


@pytest.fixture
def client(server):
    with serving.Client(server.url) as client:
        yield client


@pytest.fixture(params=["rest", "grpc"])
def either(request, rest, by_grpc):
    """A client by REST and one by gRPC: what it does is the same."""
    url = {"rest": rest, "grpc": by_grpc}[request.param].url
    with serving.Client(url) as client:
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


def test_n_best_without_the_missing_hypotheses(either):
    assert either.translate_nbest(["abc", "ab"]) == [
        [serving.Hypothesis("ABC", -0.5, 3, False)],
        [("AB", -0.5, 2, False), ("Ab", -1.5, 1, False)],
    ]
    assert either.translate_nbest("a" * 21)[0].truncated is True


def test_documents_without_padding(either):
    first, second, third = either.translate_document(["a|b|c", "d", ""])
    assert first == ("A|B|C", ["a", "b", "c"], ["A", "B", "C"], False)
    assert second.sentences == ["d"] and second.sentence_translations == ["D"]
    assert third == ("", [], [], False)


def test_scores_of_pairs(either):
    found = either.score(["x", "y"], ["a b", "c" * 30])
    assert found == [TargetProbability(-3.0, 3, False), (-30.0, 2, True)]
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


def test_nothing_needs_no_request(client, server):
    assert client.translate([]) == client.translate_nbest(iter(())) == client.score([], []) == []
    assert list(client.stream([])) == server.requests == []


def test_status_and_metadata(either):
    (status,) = either.status()
    assert (status["version"], status["state"]) == ("3", "AVAILABLE")
    signatures = either.metadata()["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == model_servers.SIGNATURES.keys()


def test_a_version_is_a_part_of_each_request(server, grpc_server):
    with serving.Client(server.url + "/", version=3) as client:
        assert client.translate("a") == "A"
        client.status()
        client.metadata()
    paths = [path for path, _ in server.requests]
    model = "/v1/models/demo/versions/3"
    assert paths == [f"{model}:predict", model, f"{model}/metadata"]
    with serving.Client(grpc_server.url, version=3) as client:
        assert client.translate("a") == "A"
    (request,) = grpc_server.requests
    assert request.model_spec.name == "demo" and request.model_spec.version.value == 3


def test_by_grpc_an_export_answers_as_in_a_session(exported_version, sentences):
    model = SavedModelSession(exported_version, threads=1)

    def predict(signature, inputs):
        encoded = {name: [t.encode() for t in texts] for name, texts in inputs.items()}
        return {name: values.tolist() for name, values in model.run(signature, encoded).items()}

    with model_servers.grpc_server(predict) as server:
        with serving.Client(server.url, batch_size=8) as client:
            assert client.translate(sentences[:20]) == [
                text.decode()
                for text in predict("serving_default", {"text": sentences[:20]})["translation"]
            ]
    sizes = [request.inputs["text"].tensor_shape.dim[0].size for request in server.requests]
    assert sorted(sizes) == [4, 8, 8]


# Batches


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=60),
    batch_size=st.integers(1, 9),
    characters=st.integers(1, 40),
    connections=st.integers(1, 4),
)
def test_results_come_in_order_and_requests_are_bounded(
    rest, lengths, batch_size, characters, connections
):
    rest.requests.clear()
    texts = [f"{index}:" + "a" * length for index, length in enumerate(lengths)]
    client = serving.Client(rest.url, batch_size=batch_size, connections=connections)
    with pytest.MonkeyPatch.context() as patch, client:
        patch.setattr(client_file, "_REQUEST_CHARACTERS", characters)
        assert client.translate(texts) == [text.upper() for text in texts]
        expected = [-float(len(text)) for text in texts]
        assert [score.log_prob for score in client.score(texts, texts)] == expected
    for _, content in rest.requests:
        items = list(zip(*content["inputs"].values(), strict=True))
        assert 1 <= len(items) <= batch_size
        assert len(items) == 1 or len("".join(itertools.chain(*items))) <= characters


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


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_busy_server_is_asked_again(client, server, waits, status):
    server.script = [Answer(status, {"error": "full"})] * 3
    assert client.translate("a") == "A"
    assert len(server.requests) == 4
    assert waits and max(waits) < 1


def test_the_server_says_when_to_ask_again(client, server, waits):
    server.script = [Answer(429, {}, Retry_After="7"), Answer(503, {}, Retry_After="3600")]
    assert client.translate("a") == "A"
    assert 7 < waits[0] <= 10.5, "clients should not come back together"
    assert 30 < waits[1] <= 45


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_retries_end(server, waits, retries):
    server.script = [Answer(503, {"error": "queue is full"})] * 9
    with serving.Client(server.url, retries=retries) as client:
        message = error_of(serving.OverloadedError, client.translate, "a")
    assert message == f"{server.url}: status 503: queue is full"
    assert len(server.requests) == retries + 1


@pytest.mark.parametrize("answer", [Closed(), Truncated(200, {"outputs": ["A"]})])
def test_a_broken_connection_is_made_again(client, server, waits, answer):
    server.script = [answer]
    assert client.translate("a") == "A"
    server.script = [answer] * 9
    error_of(serving.UnreachableError, client.translate, "a")
    assert len(server.requests) == 2 + 5


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


def test_a_slow_answer_is_a_time_out_and_not_asked_for_again(server):
    server.script = [Late(0, b"")]
    with serving.Client(server.url, timeout=0.3) as client:
        message = error_of(serving.ServingTimeoutError, client.translate, "a")
    assert "no answer in time" in message
    assert len(server.requests) == 1


def test_by_grpc_the_time_ends_a_request():
    def late(signature, inputs):
        server.over.wait(20)
        raise LookupError(signature)

    with model_servers.grpc_server(late) as server:
        with serving.Client(server.url, timeout=0.3) as client:
            error_of(serving.ServingTimeoutError, client.translate, "a")
        server.over.set()


@pytest.mark.parametrize(
    ("status", "content", "kind", "part"),
    [
        (400, {"error": "bad\n  text"}, serving.BadRequestError, "status 400: bad text"),
        (413, {"error": "too long"}, serving.BadRequestError, "status 413: too long"),
        (404, {"error": "not here"}, serving.NotFoundError, "status 404: not here"),
        (404, b"<html>\nNot here</html>", serving.NotFoundError, "Not here</html>"),
        (500, {"error": "an operation failed"}, serving.UnexpectedAnswerError, "status 500: an op"),
        (301, b"", serving.UnexpectedAnswerError, "status 301"),
        (200, b"<html>", serving.UnexpectedAnswerError, "<html>"),
        (200, b"\xff" * 9999, serving.UnexpectedAnswerError, "status 200"),
        (200, [], serving.UnexpectedAnswerError, "status 200"),
        (200, {"outputs": ["A", "B"]}, serving.UnexpectedAnswerError, "serving_default"),
        (200, {"predictions": ["A"]}, serving.UnexpectedAnswerError, "not as expected"),
    ],
)
def test_other_answers_are_errors_that_name_the_server(client, server, status, content, kind, part):
    server.script = [Answer(status, content, Location="http://127.0.0.1:1/")]
    message = error_of(kind, client.translate, "a")
    assert message.startswith(f"{server.url}: ") and part in message
    assert len(server.requests) == 1


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
def test_outputs_of_a_wrong_shape_are_an_error(client, server, outputs):
    server.script = [Answer(200, {"outputs": outputs})]
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


def test_a_text_is_no_list_of_letters(client, server):
    with pytest.raises(TypeError, match="read letter by letter"):
        client.score(["a"], "b")
    with pytest.raises(TypeError, match="read letter by letter"):
        list(client.stream("abc"))
    with pytest.raises(ValueError, match="zip"):
        client.align(["a", "b"], ["c"])
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8501", "ftp://host/demo", "http://host:8501", "http://host/v1/models/",
        "http://host/v1/models/demo:predict", "http://host/v1/models/demo/versions/3",
        "http:///v1/models/demo", "http://host/v1/models/demo?x=1", "grpc://host/demo",
        "grpc://host:1/v1/models/demo", "", "http://me:secret@host/v1/models/demo",
    ],
)  # fmt: skip
def test_a_url_that_names_no_model_is_refused(url):
    with pytest.raises(ValueError, match="the URL must") as caught:
        serving.Client(url)
    assert "secret" not in str(caught.value)


def test_rest_loads_no_tensorflow(server):
    code = (
        "import sys, tf_transformer.serving as serving\n"
        f"with serving.Client({server.url!r}) as client:\n"
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
