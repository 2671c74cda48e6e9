"""The client against servers that play what real ones do; REST in particular."""

import contextlib
import itertools
import os
import pathlib
import socket
import subprocess
import sys
import threading
import types

import model_servers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_servers import Answer, Closed, Late, Trickling, Truncated

import tf_transformer
from tf_transformer import serving
from tf_transformer.inference.results import MISSING_SCORE
from tf_transformer.serving.client import rest as rest_client
from tf_transformer.serving.client import results

ROOT = pathlib.Path(tf_transformer.__file__).parents[1]
UNUSUAL = ["", "\0", "a\0", "é\u202e", "🙂", "a\nb", '"\\', "</s>", "\ufeff"]


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
def clock(monkeypatch):
    """Time that passes in sleep only; the attribute `waits` has what was slept."""
    clock = types.SimpleNamespace(now=0.0, waits=[], monotonic=lambda: clock.now)

    def sleep(seconds):
        clock.waits.append(seconds)
        clock.now += seconds

    clock.sleep = sleep
    monkeypatch.setattr(rest_client, "time", clock)
    return clock


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
    assert either.translate(["a", "b"]) == ["A", "B"]
    assert either.translate(text for text in "cd") == ["C", "D"]
    assert either.translate(("a",)) == ["A"]


def test_any_unicode_passes(either):
    assert either.translate(UNUSUAL) == [text.upper() for text in UNUSUAL]


def test_a_lone_surrogate_becomes_a_question_mark(either):
    assert either.translate(["a\ud800b", "\udfff"]) == ["A?B", "?"]
    assert either.score("\ud800", "\ud800") == (-1.0, 2, False)


def test_n_best_without_the_missing_hypotheses(either):
    assert either.translate_nbest(["abc", "ab"]) == [
        [serving.Hypothesis("ABC", -0.5, 3, False)],
        [("AB", -0.5, 2, False), ("Ab", -1.5, 1, False)],
    ]
    assert either.translate_nbest("a" * 21)[0].truncated is True


def test_the_missing_score_is_that_of_the_graph():
    assert results._MISSING_SCORE == MISSING_SCORE


def test_documents_without_padding(either):
    first, second, third = either.translate_document(["a|b|c", "d", ""])
    assert first == ("A|B|C", ["a", "b", "c"], ["A", "B", "C"], False)
    assert second.sentences == ["d"] and second.sentence_translations == ["D"]
    assert third == ("", [], [], False)
    assert either.translate_document("a|b").translation == "A|B"


def test_scores_of_pairs(either):
    found = either.score(["x", "y"], ["a b", "c" * 30])
    assert found == [serving.PairScore(-3.0, 3, False), (-30.0, 2, True)]
    assert either.score("x", "a") == (-1.0, 2, False)


def test_alignments_have_their_real_lengths(either):
    found = either.align(["a b c", "d"], ["x", "y z"])
    assert [alignment.source_subwords for alignment in found] == [
        ["▁a", "▁b", "▁c", "</s>"],
        ["▁d", "</s>"],
    ]
    assert [alignment.target_subwords for alignment in found] == [["▁x"], ["▁y", "▁z"]]
    assert [alignment.attention.shape for alignment in found] == [(1, 4), (2, 2)]
    for alignment in found:
        assert alignment.attention.dtype == np.float32
        np.testing.assert_allclose(alignment.attention.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("target", ["", "x"])
def test_an_empty_target_has_no_rows_of_attention(either, target):
    empty, *_ = either.align(["a b", "c"], ["", target])
    assert empty.target_subwords == [] and empty.attention.shape == (0, 3)


def test_nothing_needs_no_request(client, server):
    assert client.translate([]) == client.translate_nbest(iter(())) == []
    assert client.score([], []) == client.align([], []) == client.translate_document([]) == []
    assert list(client.stream([])) == []
    assert server.requests == []


def test_status_and_metadata(either):
    assert either.status() == [serving.VersionStatus(3, "AVAILABLE", "")]
    signatures = either.metadata()["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == model_servers.SIGNATURES.keys()


def test_a_version_is_a_part_of_the_path(server):
    with serving.Client(server.url + "/", version=3) as client:
        assert client.translate("a") == "A"
        client.status()
        client.metadata()
    paths = [path for path, _ in server.requests]
    model = "/v1/models/demo/versions/3"
    assert paths == [f"{model}:predict", model, f"{model}/metadata"]


# Batches


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=60),
    batch_size=st.integers(1, 9),
    batch_characters=st.integers(1, 40),
    connections=st.integers(1, 4),
)
def test_results_come_in_order_and_requests_are_bounded(
    rest, lengths, batch_size, batch_characters, connections
):
    rest.requests.clear()
    texts = [f"{index}:" + "a" * length for index, length in enumerate(lengths)]
    with serving.Client(
        rest.url, batch_size=batch_size, batch_characters=batch_characters, connections=connections
    ) as client:
        assert client.translate(texts) == [text.upper() for text in texts]
        assert [found[0].text for found in client.translate_nbest(texts)] == [
            text.upper() for text in texts
        ]
        expected = [-float(len(text)) for text in texts]
        assert [score.log_prob for score in client.score(texts, texts)] == expected
    for _, content in rest.requests:
        items = list(zip(*content["inputs"].values(), strict=True))
        assert 1 <= len(items) <= batch_size
        assert len(items) == 1 or len("".join(itertools.chain(*items))) <= batch_characters


def test_a_stream_reads_only_a_little_ahead(client):
    read = []
    texts = (read.append(index) or f"text {index}" for index in range(100_000))
    stream = client.stream(texts)
    assert list(itertools.islice(stream, 3)) == ["TEXT 0", "TEXT 1", "TEXT 2"]
    assert len(read) <= 3 * 16 * 32  # groups of 16 batches of 32
    stream.close()


@pytest.mark.parametrize("threads", [1, 6])
def test_requests_at_a_time_are_as_many_as_connections(threads):
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(3)

    def predict(signature, inputs):
        return model_servers.upper_case_model(signature, inputs)

    class Counted(Answer):
        def send(self, handler):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            together.wait(10)  # three must be under way
            with lock:
                running -= 1
            super().send(handler)

    with model_servers.rest_server(predict) as server:
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
        assert most == 3
        assert len(server.requests) == 12
        assert server.connections == 3  # and are used again


# Retries


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_busy_server_is_asked_again(client, server, clock, status):
    server.script = [Answer(status, {"error": "full"})] * 3
    assert client.translate("a") == "A"
    assert len(server.requests) == 4
    for wait, longest in zip(clock.waits, (0.1, 0.2, 0.4), strict=True):
        assert longest / 2 <= wait <= longest
    assert len({content["inputs"]["text"][0] for _, content in server.requests}) == 1


def test_waits_are_random(server, clock):
    for _ in range(3):
        server.script = [Answer(503, {})]
        with serving.Client(server.url) as client:
            client.translate("a")
    assert len(set(clock.waits)) == 3


def test_the_server_says_when_to_ask_again(client, server, clock):
    server.script = [Answer(429, {}, Retry_After="7"), Answer(503, {}, Retry_After="nonsense")]
    assert client.translate("a") == "A"
    assert clock.waits[0] == 7 and clock.waits[1] <= 0.2


def test_a_wait_beyond_the_deadline_is_not_begun(client, server, clock):
    server.script = [Answer(429, {"error": "quota"}, Retry_After="3600")]
    message = error_of(serving.OverloadedError, client.translate, "a")
    assert "status 429: quota; ask again later" in message and server.url in message
    assert clock.waits == [] and len(server.requests) == 1


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_retries_end(server, clock, retries):
    server.script = [Answer(503, {"error": "queue is full"})] * 9
    with serving.Client(server.url, retries=retries) as client:
        message = error_of(serving.OverloadedError, client.translate, "a")
    assert "queue is full" in message
    assert len(server.requests) == retries + 1


@pytest.mark.parametrize("answer", [Closed(), Truncated(200, {"outputs": ["A"]})])
def test_a_broken_connection_is_made_again(client, server, clock, answer):
    server.script = [answer]
    assert client.translate("a") == "A"
    assert len(server.requests) == 2


def test_connections_that_break_each_time_are_an_error(client, server, clock):
    server.script = [Closed()] * 9
    message = error_of(serving.UnreachableError, client.translate, "a")
    assert "the connection broke" in message and len(server.requests) == 5


# Errors


@pytest.fixture
def unused_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]  # bound and not listening: refused


def test_without_a_server_the_error_says_what_to_start(unused_port, clock):
    url = f"http://127.0.0.1:{unused_port}/v1/models/demo"
    with serving.Client(url) as client:
        message = error_of(serving.UnreachableError, client.translate, "a")
    assert message.startswith(f"{url}: nobody listens (")
    assert message.endswith(
        "); start a server with tf-transformer serve SAVED_MODEL, or correct the URL."
    )
    assert len(clock.waits) == 4


@pytest.mark.parametrize("answer", [Late(0, b""), Trickling(0, b"")])
def test_a_slow_answer_is_a_time_out_and_not_asked_for_again(server, answer):
    server.script = [answer]
    with serving.Client(server.url, read_timeout=0.3, deadline=0.5) as client:
        message = error_of(serving.ServingTimeoutError, client.translate, "a")
    assert "no answer in time" in message
    assert len(server.requests) == 1


@pytest.mark.parametrize("limits", [{"read_timeout": 0.2}, {"deadline": 0.2}])
def test_either_limit_ends_a_request(server, limits):
    server.script = [Late(0, b"")]
    with serving.Client(server.url, **limits) as client:
        error_of(serving.ServingTimeoutError, client.translate, ["a"])


def test_a_connection_has_its_own_time_out(monkeypatch):
    waits = []
    monkeypatch.setattr(rest_client.time, "sleep", waits.append)
    # The queue of connections that nobody accepts is full.
    with socket.socket() as full, contextlib.ExitStack() as others:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/v1/models/demo"
        with serving.Client(url, connect_timeout=0.1, deadline=3, retries=2) as client:
            message = error_of(serving.UnreachableError, client.translate, "a")
    assert "no connection in time" in message
    assert len(waits) == 2  # the first attempt has not used up all of the time


@pytest.mark.parametrize(
    ("status", "content", "kind", "part"),
    [
        (400, {"error": "bad\n  text"}, serving.BadRequestError, "status 400: bad text."),
        (413, {"error": "too long"}, serving.BadRequestError, "status 413: too long."),
        (404, {"error": "Servable not found"}, serving.NotFoundError, "Servable not found."),
        (404, b"<html>\nNot here</html>", serving.NotFoundError, "<html> Not here</html>"),
        (500, {"error": "an operation failed"}, serving.UnexpectedAnswerError, "status 500: an op"),
        (500, b"", serving.UnexpectedAnswerError, "status 500: Internal Server Error."),
        (301, b"", serving.UnexpectedAnswerError, "status 301: Moved Permanently"),
        (200, b"<html>", serving.UnexpectedAnswerError, "no JSON object: b'<html>'"),
        (200, b"\xff" * 9999, serving.UnexpectedAnswerError, "no JSON object"),
        (200, [], serving.UnexpectedAnswerError, "no JSON object"),
        (200, {"outputs": ["A", "B"]}, serving.UnexpectedAnswerError, "serving_default of 1 texts"),
        (200, {"outputs": "A"}, serving.UnexpectedAnswerError, "not as expected"),
        (200, {"outputs": [7]}, serving.UnexpectedAnswerError, "not as expected"),
        (200, {"predictions": ["A"]}, serving.UnexpectedAnswerError, "not as expected"),
    ],
)
def test_other_answers_are_errors_that_name_the_server(client, server, status, content, kind, part):
    server.script = [Answer(status, content, Location="http://127.0.0.1:1/")]
    message = error_of(kind, client.translate, "a")
    assert message.startswith(f"{server.url}: ") and part in message
    # After a refusal the metadata tell whether the signature is there.
    assert len(server.requests) == (2 if kind is serving.BadRequestError else 1)


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        ["A"],
        {"translations": [["A"]], "scores": [[-1.0, -2.0]], "lengths": [[1]], "truncated": [False]},
        {"translations": [["A"]], "scores": [["x"]], "lengths": [[1]], "truncated": [False]},
        {"translations": ["A"], "scores": [-1.0], "lengths": [1], "truncated": [False]},
    ],
)
def test_outputs_of_a_wrong_shape_are_an_error(client, server, outputs):
    server.script = [Answer(200, {"outputs": outputs})]
    error_of(serving.UnexpectedAnswerError, client.translate_nbest, "a")


def test_a_wrong_status_is_an_error(client, server):
    server.script = [Answer(200, {"model_version_status": [{"version": "x"}]})]
    error_of(serving.UnexpectedAnswerError, client.status)


def old_model(signature, inputs):
    raise LookupError(signature)


@pytest.mark.parametrize("of", [model_servers.rest_server, model_servers.grpc_server])
def test_a_missing_signature_is_named(of, monkeypatch):
    signatures = {"serving_default": model_servers.SIGNATURES["serving_default"]}
    monkeypatch.setattr(model_servers, "SIGNATURES", signatures)
    with of(old_model) as server, serving.Client(server.url) as client:
        message = error_of(serving.NotFoundError, client.score, "a", "b")
        assert "no signature score; export it again" in message
        # A signature that is there was refused for another reason.
        error_of(serving.BadRequestError, client.translate, "a")


def test_one_bad_batch_ends_a_list(client, server):
    server.script = [Answer(400, {"error": "no"})]
    with pytest.raises(serving.BadRequestError):
        client.translate(["a"] * 200)
    assert client.translate("a") == "A"


def test_errors_are_also_those_of_python():
    bases = {
        serving.UnreachableError: ConnectionError,
        serving.ServingTimeoutError: TimeoutError,
        serving.BadRequestError: ValueError,
        serving.NotFoundError: LookupError,
        serving.OverloadedError: Exception,
        serving.UnexpectedAnswerError: Exception,
    }
    for kind, base in bases.items():
        assert issubclass(kind, serving.ServingError) and issubclass(kind, base)
        assert str(kind.of("http://x", "it\nfailed.")).startswith("http://x: it failed")


# Arguments


@pytest.mark.parametrize("texts", [b"a", {"a"}, {"a": 1}, 7, None])
def test_texts_are_a_list_of_str(client, server, texts):
    with pytest.raises(TypeError, match=f"list of str; received {type(texts).__name__}"):
        client.translate(texts)
    assert server.requests == []


def test_an_item_that_is_no_text_is_named(client):
    with pytest.raises(TypeError, match="item 1 is bytes"):
        client.translate(["a", b"b"])
    with pytest.raises(TypeError, match="targets must be a list of str; received str"):
        client.score(["a"], "b")


@pytest.mark.parametrize("counts", [(2, 3), (3, 2), (0, 1)])
def test_pairs_belong_together(client, counts):
    with pytest.raises(ValueError, match=f"only one of them has an item {min(counts)}"):
        client.align(*(["a"] * count for count in counts))


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8501", "ftp://host/demo", "http://host:8501", "http://host/v1/models/",
        "http://host/v1/models/demo:predict", "http://host/v1/models/demo/versions/3",
        "http:///v1/models/demo", "http://host/v1/models/demo?x=1", "grpc://host:1", "grpc://host/demo",
        "grpc://host:1/v1/models/demo", "",
    ],
)  # fmt: skip
def test_a_url_that_names_no_model_is_refused(url):
    with pytest.raises(ValueError, match="the URL must"):
        serving.Client(url)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0}, {"batch_size": 1.5}, {"batch_characters": 0}, {"connections": 0},
        {"retries": -1}, {"deadline": 0}, {"read_timeout": float("nan")}, {"version": -1},
        {"connect_timeout": float("inf")},
    ],
)  # fmt: skip
def test_numbers_are_checked(options):
    ((name, _),) = options.items()
    with pytest.raises(ValueError, match=f"^{name} must be .*received {name}="):
        serving.Client("http://127.0.0.1/v1/models/demo", **options)


def test_a_closed_client_says_so(server):
    with serving.Client(server.url) as client:
        client.translate("a")
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.translate("a")


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
