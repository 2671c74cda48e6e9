"""The local server: its limits, slow and broken clients, load, and how it ends."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import time

import numpy as np
import pytest
from stub_server import (
    MODEL,
    PREDICT,
    Client,
    ask,
    eventually,
    head_of,
    in_background,
    make_server,
    metric,
    port_of,
    serving,
    translate,
)

from tf_transformer.errors import ConfigError
from tf_transformer.serving import Limits

A = json.dumps({"instances": ["a"]}).encode()


@pytest.fixture
def serve(tmp_path):
    """Starts servers of a stub; gives the server and the stub."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(serving(tmp_path, **options))


@contextlib.contextmanager
def client_of(server):
    client = Client(server)
    try:
        yield client
    finally:
        client.socket.close()


# Limits


@pytest.mark.parametrize(
    ("limits", "body", "headers", "status", "message"),
    [
        ({"max_body_bytes": len(A) - 1}, A, {}, 413, "the request is larger than 19 bytes"),
        ({"max_body_bytes": len(A)}, A, {}, 200, None),
        ({"max_characters": 2}, {"instances": ["ü", "ab"]}, {}, 413, "3 characters; it may have 2"),
        ({"max_characters": 3}, {"instances": ["ü", "ab"]}, {}, 200, None),
        ({"max_texts": 2}, {"instances": ["a", "b", "c"]}, {}, 413, "3 texts; it may have 2"),
        ({"max_texts": 3}, {"instances": ["a", "b", "c"]}, {}, 200, None),
        ({}, A, {"Content-Encoding": "gzip"}, 415, "a compressed body is not understood"),
        ({}, A, {"Content-Encoding": "identity"}, 200, None),
    ],
)
def test_what_is_too_much_is_refused(serve, limits, body, headers, status, message):
    server, model = serve(**limits)
    found, _, content = ask(server, body=body, headers=headers)
    assert found == status
    if message:
        assert content["error"].endswith(message)
        assert not model.batches


def test_a_body_without_a_length_is_refused_while_it_is_read(serve):
    server, _ = serve(max_body_bytes=1000)
    with client_of(server) as client:
        client.send(f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n".encode())
        client.send(b"Transfer-Encoding: chunked\r\n\r\n" + b"1f4\r\n" + b"a" * 500 + b"\r\n")
        client.send(b"1f5\r\n" + b"a" * 501 + b"\r\n")  # and no end
        assert client.response()[0] == 413
    assert translate(server, "a") == (200, ["A"])


def test_who_sends_too_much_still_gets_the_answer_and_may_go_on(serve):
    server, _ = serve(max_body_bytes=1000)
    with client_of(server) as client:
        client.ask(b"a" * 5_000_000)
        assert client.response()[0] == 413
        client.ask(A)
        assert client.response() == (200, b'{"predictions": ["A"]}')


def test_a_full_queue_is_429(serve):
    server, model = serve(threads=1, max_queue=2)
    first = in_background(translate, server, "wait")
    eventually(lambda: model.batches)
    others = [in_background(translate, server, text) for text in "ab"]
    eventually(lambda: metric(server, "tf_transformer_queue_length") == 2)
    status, headers, content = ask(server, body=A)
    assert (status, headers["Retry-After"]) == (429, "1")
    assert content["error"] == "2 requests wait already; try again later"
    model.go.set()
    assert [future.result(20) for future in (first, *others)] == [
        (200, ["WAIT"]), (200, ["A"]), (200, ["B"])
    ]  # fmt: skip


def test_a_request_whose_time_is_up_leaves_the_queue(serve):
    server, model = serve(threads=1, request_seconds=0.3)
    first = in_background(translate, server, "wait")
    eventually(lambda: model.batches)
    assert translate(server, "late") == (504, "no answer within 0.3 seconds")
    assert first.result(20)[0] == 504
    assert metric(server, "tf_transformer_queue_length") == 0
    model.go.set()
    assert translate(server, "a") == (200, ["A"])
    assert model.batches == [[b"wait"], [b"a"]]


def test_a_request_whose_client_has_gone_leaves_the_queue(serve):
    server, model = serve(threads=1)
    first = in_background(translate, server, "wait")
    eventually(lambda: model.batches)
    with client_of(server) as client:
        client.ask(b'{"instances": ["gone"]}')
        eventually(lambda: metric(server, "tf_transformer_queue_length") == 1)
    eventually(lambda: metric(server, "tf_transformer_queue_length") == 0)
    model.go.set()
    assert first.result(20) == (200, ["WAIT"])
    assert model.batches == [[b"wait"]]
    assert b'status="499"' in ask(server, "/metrics")[2]


def test_more_connections_than_the_limit_are_503_or_cut(serve):
    server, _ = serve(max_connections=3)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client_of(server)) for _ in range(6)]
        for client in clients[:3]:
            client.ask(A)
            assert client.response()[0] == 200
        for client in clients[3:]:
            client.ask(A)
            status, content = client.response()
            assert status == 503 and b"too many connections" in content
            assert client.is_closed()
        more = [stack.enter_context(client_of(server)) for _ in range(4)]
        assert more[-1].is_closed()
    eventually(lambda: translate(server, "a") == (200, ["A"]))


@pytest.mark.parametrize("name", ["max_queue", "body_seconds", "max_batch_texts"])
def test_a_limit_is_positive(name):
    with pytest.raises(ConfigError, match=f"{name} must be greater than 0"):
        Limits(**{name: 0})


# Slow and broken clients


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST", b"GET / HTTP/1.1\r\nHost: localhost\r\n", f"GET {MODEL} HTTP/1.1".encode()],
    ids=str,
)
def test_a_connection_that_sends_no_request_is_closed(serve, sent):
    server, _ = serve(body_seconds=0.3)
    with client_of(server) as client:
        client.send(sent)
        assert client.is_closed()


def test_a_connection_that_drips_is_closed(serve):
    server, _ = serve(body_seconds=0.3)
    with client_of(server) as client, contextlib.suppress(ConnectionError):
        for byte in b"GET / HTTP/1.1\r\nX: " + b"a" * 200:
            client.send(bytes([byte]))
            time.sleep(0.02)
        pytest.fail("it goes on for ever")


def test_a_body_that_does_not_arrive_is_408(serve):
    server, model = serve(body_seconds=0.3)
    with client_of(server) as client:
        client.send(head_of(len(A)) + A[:-1])
        status, content = client.response()
        assert (status, client.headers["connection"]) == (408, "close")
        assert json.loads(content)["error"] == "the request did not arrive within 0.3 seconds"
        assert client.is_closed()
    assert not model.batches


def test_the_rest_of_a_refused_body_is_not_waited_for(serve):
    server, _ = serve(body_seconds=0.3)
    with client_of(server) as client:
        client.send(head_of(10**9))
        assert client.response()[0] == 413
        assert client.is_closed()


def test_a_connection_may_rest_between_requests(serve):
    server, _ = serve(body_seconds=0.5)
    head = head_of(len(A))
    with client_of(server) as client:
        for _ in range(3):
            client.send(head[:20])
            time.sleep(0.3)  # from the last answer on it is more than the limit
            client.send(head[20:] + A)
            assert client.response()[0] == 200
            time.sleep(0.3)


@pytest.mark.parametrize("requests", [1, 200], ids=["one answer", "many answers"])
def test_a_client_that_takes_no_answer_is_cut(serve, requests):
    # What the system keeps for the client does not count as taken.
    server, model = serve(body_seconds=0.3)
    large = 100 if requests == 1 else 1
    model.outputs = lambda *_: {"translation": np.array([b"a" * 100_000] * large, object)}
    with client_of(server) as client:
        client.send((head_of(len(A)) + A) * requests)
        eventually(lambda: metric(server, "tf_transformer_connections") == 2)
        eventually(lambda: metric(server, "tf_transformer_connections") == 1)
        assert client.received() < 10_000_000


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
     b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"],
    ids=["TLS", "no version", "no host", "length"],
)  # fmt: skip
def test_what_is_no_http_is_400(serve, sent):
    server, _ = serve()
    with client_of(server) as client:
        client.send(sent)
        assert client.response()[0] == 400
        assert client.is_closed()


def test_a_head_without_end_is_400_or_cut(serve):
    server, _ = serve()
    with client_of(server) as client, contextlib.suppress(ConnectionError):
        client.send(b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n")
        assert client.response()[0] in (0, 400)
        assert client.is_closed()
    assert translate(server, "a") == (200, ["A"])


def test_garbage_after_a_refused_request_closes_the_connection(serve, caplog):
    server, _ = serve(max_body_bytes=10)
    with client_of(server) as client:
        client.send(f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n".encode())
        client.send(b"Transfer-Encoding: chunked\r\n\r\n14\r\n" + b"a" * 20 + b"\r\n")
        assert client.response()[0] == 413
        client.send(b"no length of a chunk\r\n")
        assert client.is_closed()
    assert not caplog.records


def test_requests_that_are_sent_at_once_are_answered_in_order(serve):
    server, _ = serve()
    with client_of(server) as client:
        bodies = [json.dumps({"instances": [text]}).encode() for text in "abc"]
        client.send(b"".join(head_of(len(body)) + body for body in bodies))
        found = b""
        while found.count(b"predictions") < 3 or not found.endswith(b"}"):
            found += client.socket.recv(65536)
    assert re.findall(rb'\["(.)"\]', found) == [b"A", b"B", b"C"]


# Load


@pytest.mark.parametrize("batching", [True, False])
def test_64_clients_get_their_own_answers(serve, batching):
    server, model = serve(threads=1, batching=batching)

    def work(client):
        connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=30)
        for number in range(5):
            text = f"text {client} {number}"
            connection.request("POST", PREDICT, json.dumps({"instances": [text]}))
            response = connection.getresponse()
            assert json.loads(response.read()) == {"predictions": [text.upper()]}
        connection.close()

    first = in_background(translate, server, "wait")
    eventually(lambda: model.batches)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        done = [pool.submit(work, client) for client in range(64)]
        eventually(lambda: metric(server, "tf_transformer_queue_length") == 64)
        model.go.set()
        for future in done:
            future.result(60)
    assert first.result(20) == (200, ["WAIT"])
    assert max(map(len, model.batches)) == (64 if batching else 1)
    assert metric(server, 'tf_transformer_batch_texts_sum{signature="serving_default"}') == 321
    counted = 'tf_transformer_requests_total{signature="serving_default",status="200"}'
    assert metric(server, counted) == 321


def test_a_text_that_fails_does_not_fail_its_batch(serve):
    server, model = serve(threads=1)
    first = in_background(translate, server, "wait")
    eventually(lambda: model.batches)
    others = [in_background(translate, server, text) for text in ("a", "fail", "b")]
    eventually(lambda: metric(server, "tf_transformer_queue_length") == 3)
    model.go.set()
    found = [future.result(20) for future in (first, *others)]
    assert [status for status, _ in found] == [200, 200, 500, 200]
    assert any(len(batch) == 3 for batch in model.batches)


def test_documents_share_no_large_batch(serve):
    server, model = serve(threads=1, max_batch_characters=100)
    first = in_background(translate, server, "wait")
    eventually(lambda: model.batches)
    others = [in_background(translate, server, text * 60) for text in "ab"]
    eventually(lambda: metric(server, "tf_transformer_queue_length") == 2)
    model.go.set()
    assert [future.result(20)[0] for future in (first, *others)] == [200] * 3
    assert [len(batch) for batch in model.batches] == [1, 1, 1]


# What is served beside the API


def test_health_says_which_version_serves(serve):
    server, _ = serve()
    assert ask(server, "/healthz")[::2] == (200, {"model": "demo", "version": 1})
    assert metric(server, "tf_transformer_version") == 1


def test_metrics_count_requests_and_characters(serve):
    server, _ = serve()
    translate(server, "ü", "ab")
    translate(server)
    ask(server, f"{MODEL}x:predict", A)
    page = ask(server, "/metrics")[2].decode()
    for line in (
        'tf_transformer_requests_total{signature="serving_default",status="200"} 1.0',
        'tf_transformer_requests_total{signature="serving_default",status="400"} 1.0',
        'tf_transformer_requests_total{signature="",status="404"} 1.0',
        'tf_transformer_characters_total{signature="serving_default"} 3.0',
        'tf_transformer_batch_texts_bucket{le="2.0",signature="serving_default"} 1.0',
        'tf_transformer_request_seconds_count{signature="serving_default"} 1.0',
    ):
        assert line in page
    assert "process_resident_memory_bytes" in page


def test_the_page_names_the_model_and_may_ask_nobody_else(serve, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text('<html data-model="{{model}}">ü', encoding="utf-8")
    monkeypatch.setattr("tf_transformer.serving.server.app._PAGE", page)
    server, _ = serve()
    server.versions.name = 'a"<b>'
    status, headers, content = ask(server, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert content.decode() == '<html data-model="a&quot;&lt;b&gt;">ü'
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    page.unlink()
    assert ask(server, "/")[0] == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:8501", 200), ("[::1]:1", 200), ("LOCALHOST:1", 200),
     ("evil.example", 400), ("localhost.evil.example", 400), ("", 400)],
)  # fmt: skip
def test_a_browser_cannot_be_led_here_by_another_name(serve, host, status):
    server, _ = serve()
    assert ask(server, "/healthz", headers={"Host": host})[0] == status


def test_no_other_site_may_read_answers(serve):
    server, _ = serve()
    _, headers, _ = ask(server, body=A, headers={"Origin": "http://evil.example"})
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert ask(server, method="OPTIONS", headers={"Origin": "http://evil.example"})[0] == 400


# The end


def refuses(server):
    """Whether nobody listens any more."""
    try:
        Client(server).socket.close()
    except ConnectionRefusedError:
        return True
    return False


def run_until(server, clients, number=signal.SIGTERM):
    """Runs a server in this thread and its clients in another; if these fail, a signal ends it."""

    def watched():
        try:
            clients()
        except BaseException:
            os.kill(os.getpid(), number)
            raise

    futures = []
    answered = server.run(lambda: futures.append(in_background(watched)))
    futures[0].result(20)
    return answered


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_when_all_is_answered(tmp_path, number):
    server, model = make_server(tmp_path, threads=1, drain_seconds=10)
    asked, idle = [], []

    def clients():
        idle.append(Client(server))
        asked.append(in_background(translate, server, "wait"))
        eventually(lambda: model.batches)
        asked.append(in_background(translate, server, "a"))
        eventually(lambda: metric(server, "tf_transformer_queue_length"))
        os.kill(os.getpid(), number)
        eventually(lambda: refuses(server))
        assert not asked[0].done()
        model.go.set()

    before = signal.getsignal(number)
    assert run_until(server, clients, number) is True
    assert [future.result(20) for future in asked] == [(200, ["WAIT"]), (200, ["A"])]
    assert idle[0].is_closed()
    assert model.closed
    assert signal.getsignal(number) is before


def test_what_takes_too_long_is_cut_off_at_the_end(tmp_path):
    server, model = make_server(tmp_path, threads=1, drain_seconds=0.3)
    asked = []

    def clients():
        asked.append(in_background(translate, server, "wait"))
        eventually(lambda: model.batches)
        os.kill(os.getpid(), signal.SIGTERM)

    assert run_until(server, clients) is False
    assert asked[0].result(20) == (503, "the server has stopped")
    assert not model.closed, "a thread still uses it"
    model.go.set()


def test_a_request_that_does_not_arrive_before_the_end_is_cut_off(tmp_path):
    server, _ = make_server(tmp_path, drain_seconds=0.3)
    found = []

    def clients():
        with client_of(server) as client:
            client.send(head_of(len(A)))
            eventually(lambda: metric(server, "tf_transformer_connections") == 2)
            os.kill(os.getpid(), signal.SIGTERM)
            found.append(client.response()[0])

    assert run_until(server, clients) is False
    assert found == [503]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_first_request_counts(tmp_path, number):
    server, model = make_server(tmp_path)
    assert server.run(lambda: os.kill(os.getpid(), number)) is True
    assert model.closed


def test_the_addresses_are_those_that_clients_take(serve):
    server, _ = serve()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.address)
    assert server.url == f"{server.address}/v1/models/demo"
