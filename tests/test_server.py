"""The local server: TensorFlow Serving's REST API, its limits, other sites' pages, and its end."""

import concurrent.futures
import contextlib
import itertools
import json
import pathlib
import re
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from stub_server import (
    MODEL,
    PREDICT,
    ask,
    connection_to,
    eventually,
    head_of,
    in_background,
    make_server,
    response,
    serving,
    signature_of,
    translate,
    waiting,
)

from tf_transformer.serving import rest

A = json.dumps({"instances": ["a"]}).encode()
SIGNATURES = {name: signature_of(name) for name in ("serving_default", "score")}


@pytest.fixture
def serve(tmp_path):
    """Starts servers of a stub; gives the server and the stub."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(serving(tmp_path, **options))


@pytest.fixture
def busy(serve):
    """Starts a server whose one thread is at work; gives it, the stub and the future."""

    def start(**options):
        server, model = serve(threads=1, **options)
        first = in_background(translate, server, "wait")
        eventually(lambda: model.batches)
        return server, model, first

    return start


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("stub")) as (server, _):
        yield server


# What is asked


def parsed(content, name="serving_default"):
    if isinstance(content, dict):
        content = json.dumps({"signature_name": name, **content}).encode()
    return rest.parse(content, SIGNATURES)


PAIR = {"source": ["a"], "target": ["b"]}
HALLO = "Hallo."


@pytest.mark.parametrize(
    ("content", "name", "texts"),
    [
        ({"instances": ["a", "ü"]}, "", {"text": ["a", "ü"]}),
        ({"instances": [{"text": "a"}, {"text": "b"}]}, "", {"text": ["a", "b"]}),
        ({"inputs": []}, "", {"text": []}),
        ({"inputs": {"text": ["a"], "more": [1]}}, "", {"text": ["a"]}),
        ({"instances": [{"source": "a", "target": "b"}]}, "score", PAIR),
        ({"inputs": {"target": ["b"], "source": ["a"]}}, "score", PAIR),
    ],
)
def test_both_forms_are_read(content, name, texts):
    assert parsed(content, name) == (name or "serving_default", texts, "instances" in str(content))


OF_PAIRS = {"signature_name": "score"}
# A body, and a part of the message.
BAD = [
    *((body, "not JSON") for body in (
        b"", b"[" * 100_000, b'{"instances": ["\xff"]}', b'{"instances": ["\\ud800"]}',
        b'{"instances": [NaN]}')),
    (b"[1]", "either 'instances' or 'inputs'"),
    ({"instances": ["a"], "inputs": ["a"]}, "either 'instances' or 'inputs'"),
    ({"instance": ["a"]}, "unknown key 'instance': did you mean 'instances'"),
    ({"signature-name": "score", "instances": ["a"]}, "-name': did you mean 'signature_name'"),
    ({"x" * 9999: 1}, "unknown key 'xxx.*xxx': known are inputs, instances, signature_name"),
    *(({"signature_name": name, "instances": ["a"]},
       f"unknown signature {shown}; the model has serving_default, score")
      for name, shown in (("other", "'other'"), (["score"], ".'score'."), (0, "0"), (None, None))),
    *(({"instances": value}, f"needs text: .*one text or more; received {shown}$")
      for value, shown in ((HALLO, "'Hallo.'"), ([], r"\[\]"), (None, "None"), ({}, "{}"))),
    *(({form: [HALLO, value]}, rf"needs text: '{form}'\[1\] must be .*; received {shown}$")
      for form in ("instances", "inputs")
      for value, shown in ((1, "1"), (True, "True"), (None, "None"), ([HALLO], ".'Hallo.'."))),
    ({"inputs": {"text": ["a", 1.5]}}, r"'inputs'\[1\] must be a string for text; received 1.5$"),
    ({"inputs": HALLO}, "'inputs' must be a list.*received 'Hallo.'$"),
    ({"inputs": {"text": HALLO}}, "'inputs' must be a list.*received 'Hallo.'$"),
    *(({"instances": [{"text": "a"}, row]}, r"'instances'\[1\] must be an object with text")
      for row in ("b", {}, {"text": "a", "more": "b"}, {"Text": "a"}, {"b64": "YQ=="}, None)),
    ({"instances": ["a", {"text": "a"}]}, r"'instances'\[0\] must be an object"),
    ({"instances": [{"text": 1}]}, r"'instances'\[0\] must be a string for text; received 1$"),
    ({"instances": [json.loads("[" * 900 + "]" * 900)]}, "must be a string"),
    ({**OF_PAIRS, "inputs": {"source": ["a"]}},
     "score needs source, target: .*a list of texts for target; received None"),
    ({**OF_PAIRS, "inputs": ["a"]}, "score needs source, target: .*an object.*received .'a'.$"),
    ({**OF_PAIRS, "inputs": {"source": ["a"], "target": []}},
     "must be as many texts for each; received .'source': .'a'., 'target': "),
    ({**OF_PAIRS, "instances": ["a"]}, r"\[0\] must be an object with source, target; received"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_body_is_named(content, message):
    with pytest.raises(HTTPException) as caught:
        parsed(content)
    assert caught.value.status_code == 400
    assert re.search(message, caught.value.detail) and len(caught.value.detail) < 300


# What is answered


def written(outputs, is_row):
    return rest._json(rest.predictions(outputs, is_row)).body


def test_several_outputs_are_objects_in_both_forms():
    outputs = {
        "texts": np.array([[b"a", 'ü"\n\u2028'.encode()], [b"", b"\0\xff"]], object),
        "weights": np.zeros((2, 0, 3), np.float32),
        "lengths": np.array([3, 4], np.int32),
        "truncated": np.array([True, False]),
    }
    rows = json.loads(written(outputs, True))["predictions"]
    assert rows == [
        {"texts": ["a", 'ü"\n\u2028'], "weights": [], "lengths": 3, "truncated": True},
        {"texts": ["", "\0\ufffd"], "weights": [], "lengths": 4, "truncated": False},
    ]
    columns = json.loads(written(outputs, False))["outputs"]
    assert columns == {name: [row[name] for row in rows] for name in outputs}


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_are_short_and_exact(values):
    array = np.array([values], np.float32)
    content = written({"scores": array}, True)
    (found,) = json.loads(content)["predictions"]
    np.testing.assert_array_equal(np.array(found, np.float32), array[0])
    assert len(content) < 25 * len(values) + 50


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_number_that_json_does_not_have_is_no_null(value):
    with pytest.raises(ValueError, match="scores is not finite"):
        written({"scores": np.array([0, value], np.float32)}, False)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_any_text_comes_back(texts):
    array = np.array([text.encode() for text in texts], object)
    assert json.loads(written({"texts": array}, True)) == {"predictions": texts}
    assert parsed({"inputs": texts})[1] == {"text": texts}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/models/other:predict", 404),
        ("POST", f"/v1/models/demo/versions/{'1' * 5000}:predict", 404),
        ("POST", f"/v1/models/demo/versions/{2**64 + 1}:predict", 404),
        ("POST", "/v1/models/demo/versions/x:predict", 404),
        ("POST", "/v1/models/demo/labels/stable:predict", 404),
        ("POST", "/v1/models/demo:classify", 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/demo/versions/7", 404),
        ("GET", "/v1/models/demo/versions/7/metadata", 404),
        ("GET", "/v1/models", 404),
    ],
)
def test_a_bad_path_is_refused(stub, method, path, status):
    found, headers, content = ask(stub, path, A if method == "POST" else None, method)
    assert (found, headers["content-type"]) == (status, "application/json")
    assert list(content) == ["error"] and len(content["error"]) < 300
    assert "/v1/models/demo" in content["error"], "the right one"


ASKED = [PREDICT, f"{MODEL}/versions/1:predict", f"{MODEL}/versions/9:predict"]
READ = [MODEL, f"{MODEL}/metadata", "/healthz", "/"]


@pytest.mark.parametrize("path", [*ASKED, *READ])
def test_a_wrong_method_is_answered_with_the_right_one(stub, path):
    allowed = {"POST"} if path in ASKED else {"GET", "HEAD"}
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} - allowed:
        status, headers, content = ask(stub, path, method=method)
        assert (status, {*headers["Allow"].split(", ")}) == (405, allowed)
        if method != "HEAD":
            assert re.search(f"for {method}; the model is {MODEL},.*POST to", content["error"])


def test_a_version_may_have_leading_zeros(stub):
    for version in ("1", "001"):
        assert ask(stub, f"{MODEL}/versions/{version}:predict", A)[0] == 200
        assert ask(stub, f"{MODEL}/versions/{version}")[0] == 200


# Limits


@pytest.mark.parametrize(
    ("limits", "body", "status"),
    [
        ({"max_characters": 1, "max_texts": 1}, A + b" " * 300, 413),
        ({"max_characters": 1, "max_texts": 1}, A + b" " * 100, 200),
        ({"max_characters": 2}, {"instances": ["ü", "ab"]}, 413),
        ({"max_characters": 3}, {"instances": ["ü", "ab"]}, 200),
        ({"max_texts": 2}, {"instances": ["a", "b", "c"]}, 413),
        ({"max_texts": 3}, {"instances": ["a", "b", "c"]}, 200),
    ],
)
def test_what_is_too_much_is_refused(serve, limits, body, status):
    server, model = serve(**limits)
    assert ask(server, body=body)[0] == status
    assert bool(model.batches) == (status == 200)


def test_a_body_without_a_length_is_refused_while_it_is_read(serve):
    server, _ = serve(max_characters=1, max_texts=1)
    with connection_to(server) as client:
        client.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n".encode())
        client.sendall(b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"a" * 1001)  # and no end
        assert response(client)[0] == 413


def test_health_answers_while_all_threads_are_busy(busy):
    server, model, first = busy()
    others = [in_background(translate, server, text) for text in "ab"]
    eventually(lambda: waiting(server) == 2)
    with contextlib.ExitStack() as stack:
        for _ in range(100):  # connections of clients that ask nothing
            stack.enter_context(connection_to(server))
        assert ask(server, "/healthz")[0] == 200
    model.go.set()
    assert [future.result(20) for future in (first, *others)] == [
        (200, ["WAIT"]), (200, ["A"]), (200, ["B"])
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["\U0001f600", "\0", "ü"])
def test_a_text_of_as_many_characters_as_allowed_fits_a_body(serve, text):
    server, _ = serve(max_characters=3000, max_texts=3)
    row = {"text": text * 1000}
    for ensure_ascii in (True, False):
        body = json.dumps({"instances": [row] * 3}, ensure_ascii=ensure_ascii, indent=4)
        assert ask(server, body=body.encode())[0] == 200


def test_a_request_whose_time_is_up_leaves_the_queue(busy):
    server, model, first = busy(request_seconds=1)
    assert translate(server, "late")[0] == 504
    assert first.result(20)[0] == 504
    assert waiting(server) == 0
    model.go.set()
    assert translate(server, "a") == (200, ["A"])
    assert model.batches == [[b"wait"], [b"a"]]


def test_a_body_that_does_not_arrive_is_not_waited_for(serve):
    server, model = serve(request_seconds=1)
    with connection_to(server) as client:
        client.sendall(head_of(len(A)) + A[:-1])
        assert response(client)[0] == 504
    assert not model.batches


@pytest.mark.parametrize(
    ("size", "upgrade"),
    [(1, ""), (200_000, ""), (1, "Connection: Upgrade\r\nUpgrade: h2c\r\n")],
    ids=["small", "body of several reads", "upgrade"],
)
def test_a_request_whose_client_has_gone_leaves_the_queue(busy, size, upgrade):
    server, model, first = busy(max_characters=10**6)
    body = json.dumps({"instances": ["x" * size]}).encode()
    with connection_to(server) as client:
        client.sendall(head_of(len(body))[:-2] + upgrade.encode() + b"\r\n" + body)
        eventually(lambda: waiting(server) == 1)
    eventually(lambda: waiting(server) == 0)
    model.go.set()
    assert first.result(20) == (200, ["WAIT"])
    assert model.batches == [[b"wait"]]


def test_a_request_that_waits_does_not_keep_its_body(busy, monkeypatch):
    freed = []
    read = rest.RestApi._body

    class Body(bytes):
        def __del__(self):
            freed.append(self)

    async def noted(api, request):
        return memoryview(Body(await read(api, request)))

    monkeypatch.setattr(rest.RestApi, "_body", noted)
    server, model, first = busy()
    second = in_background(translate, server, "a")
    eventually(lambda: waiting(server) == 1)
    assert len(freed) == 2
    model.go.set()
    assert [first.result(20)[0], second.result(20)[0]] == [200, 200]


# Load and failures


def test_an_answer_does_not_wait_until_its_head_is_acknowledged(serve):
    server, _ = serve()
    assert server._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_failure_of_the_model_is_logged_and_is_that_of_one_request(busy, caplog):
    server, model, first = busy()
    others = [in_background(translate, server, text) for text in ("a", "fail", "b")]
    eventually(lambda: waiting(server) == 3)
    model.go.set()
    found = [future.result(20) for future in (first, *others)]
    assert [status for status, _ in found] == [200, 200, 500, 200]
    assert any(len(batch) == 3 for batch in model.batches)
    (record,) = [record for record in caplog.records if record.name.startswith("tf_transformer")]
    assert "a text fails" in caplog.text and PREDICT in record.getMessage()


# What is served beside the API


def test_health_names_the_version(stub):
    assert ask(stub, "/healthz")[::2] == (200, {"model": "demo", "version": 1})


def test_the_page_names_the_model_and_may_ask_nobody_else(serve):
    server, _ = serve()
    server.version.name = 'a"<b>'
    status, headers, content = ask(server, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "a&quot;&lt;b&gt;" in content.decode() and "{{model}}" not in content.decode()
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


def luminance(color):
    """The relative luminance of a color such as #ffffff, as WCAG has it."""
    parts = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_texts_of_the_page_have_contrast_in_both_schemes():
    page = (pathlib.Path(rest.__file__).parent / "page.html").read_text(encoding="utf-8")
    schemes = re.findall(r":root \{[^}]*(--ground: [^}]*)\}", page)
    assert len(schemes) == 2
    for scheme in schemes:
        colors = {name: luminance(c) for name, c in re.findall(r"--(\w+): (#\w{6})", scheme)}
        grounds = [colors.pop(name) for name in ("ground", "paper")]
        for text, ground in itertools.product(("ink", "quiet", "accent", "error"), grounds):
            darker, lighter = sorted((colors[text], ground))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, scheme)


@pytest.mark.parametrize(
    ("host", "status"), [("localhost", 200), ("[::1]:1", 200), ("evil.example", 400)]
)
def test_a_browser_cannot_be_led_here_by_another_name(stub, host, status):
    assert ask(stub, "/healthz", headers={"Host": host})[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://a.proxy"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "http://localhost:1"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:1"}, 403),
        ({"Origin": "http://localhost:2"}, 403),
        ({"Origin": "null"}, 403),
    ],
    ids=str,
)
def test_a_page_of_another_site_cannot_make_it_work(serve, headers, status):
    server, model = serve()
    found, given, _ = ask(server, body=A, headers={"Host": "localhost:1", **headers})
    assert found == status and bool(model.batches) == (status == 200)
    assert not [name for name in given if name.lower().startswith("access-control")]


# The end


def refuses(server):
    """Whether nobody listens any more."""
    try:
        with connection_to(server):
            return False
    except ConnectionRefusedError:
        return True


def test_the_end_waits_until_all_is_answered(tmp_path):
    server, model = make_server(tmp_path, threads=1)
    with concurrent.futures.ThreadPoolExecutor(1) as ending, connection_to(server.__enter__()):
        asked = [in_background(translate, server, "wait")]
        eventually(lambda: model.batches)
        asked.append(in_background(translate, server, "a"))
        eventually(lambda: waiting(server))
        ended = ending.submit(server.__exit__)
        eventually(lambda: refuses(server))
        assert not asked[0].done()
        model.go.set()
        ended.result(20)
    assert [future.result(20) for future in asked] == [(200, ["WAIT"]), (200, ["A"])]


def test_an_end_before_the_first_request_frees_the_port(tmp_path):
    server, _ = make_server(tmp_path)
    with server:
        pass
    assert refuses(server)
