"""The client by gRPC: an export behind TensorFlow Serving's messages, retries and errors."""

import socket

import grpc
import model_servers
import numpy as np
import pytest

from tf_transformer import serving
from tf_transformer.serving.session import SavedModelSession


@pytest.fixture
def server():
    with model_servers.grpc_server() as server:
        yield server


def test_an_export_answers_as_in_a_session(exported_version, sentences):
    servable = SavedModelSession(exported_version, threads=1)
    sentences = sentences[:20]

    def predict(signature, inputs):
        encoded = {name: [t.encode() for t in texts] for name, texts in inputs.items()}
        return {name: values.tolist() for name, values in servable.run(signature, encoded).items()}

    with model_servers.grpc_server(predict) as server:
        with serving.Client(server.url, batch_size=8) as client:
            translations = client.translate(sentences)
            n_best = client.translate_nbest(sentences)
    expected = predict("serving_default", {"text": sentences})["translation"]
    assert translations == [text.decode() for text in expected]
    expected = predict("translate_nbest", {"text": sentences})
    columns = (expected[name] for name in ("translations", "scores", "lengths", "truncated"))
    for hypotheses, texts, scores, lengths, truncated in zip(n_best, *columns, strict=True):
        assert len(hypotheses) == 4
        assert [h.text.encode() for h in hypotheses] == texts
        np.testing.assert_allclose([h.score for h in hypotheses], scores, atol=1e-4)
        assert [h.length for h in hypotheses] == lengths
        assert {h.truncated for h in hypotheses} == {truncated}
    sizes = [request.inputs["text"].tensor_shape.dim[0].size for request in server.requests]
    assert sorted(sizes) == [4, 4, 8, 8, 8, 8]
    servable.close()


def test_the_version_is_in_the_request(server):
    with serving.Client(server.url, version=3) as client:
        assert client.translate("a") == "A"
    (request,) = server.requests
    assert request.model_spec.name == "demo" and request.model_spec.version.value == 3


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_a_busy_server_is_asked_again(server, code):
    server.script = [(code, "full")] * 2
    with serving.Client(server.url) as client:
        assert client.translate("a") == "A"
    assert len(server.requests) == 3


@pytest.mark.parametrize("retries", [0, 1])
def test_retries_end(server, retries):
    server.script = [(grpc.StatusCode.UNAVAILABLE, "the queue\nis full")] * 9
    with serving.Client(server.url, retries=retries) as client:
        with pytest.raises(serving.OverloadedError) as caught:
            client.translate("a")
    assert str(caught.value) == (
        f"{server.url}: UNAVAILABLE: the queue is full; ask again later, or with fewer connections."
    )
    assert len(server.requests) == retries + 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, serving.BadRequestError),
        (grpc.StatusCode.NOT_FOUND, serving.NotFoundError),
        (grpc.StatusCode.INTERNAL, serving.UnexpectedAnswerError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, serving.ServingTimeoutError),
    ],
)
def test_other_codes_are_errors_and_not_asked_again(server, code, kind):
    server.script = [(code, "because")]
    with serving.Client(server.url) as client:
        with pytest.raises(kind, match=f"{code.name}: because") as caught:
            client.translate("a")
    assert type(caught.value) is kind
    assert len(server.requests) == 1


def test_a_model_that_is_not_there(server):
    with serving.Client(server.url.replace("demo", "other")) as client:
        with pytest.raises(serving.NotFoundError, match="/other: NOT_FOUND: Could not find"):
            client.status()


def test_the_deadline_ends_a_request():
    def late(signature, inputs):
        server.over.wait(20)
        raise LookupError(signature)

    with model_servers.grpc_server(late) as server:
        with serving.Client(server.url, deadline=0.3) as client:
            with pytest.raises(serving.ServingTimeoutError, match="give a greater deadline"):
                client.translate("a")
        server.over.set()


def test_without_a_server_the_error_says_what_to_start():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"grpc://127.0.0.1:{taken.getsockname()[1]}/demo"
        with serving.Client(url, connect_timeout=0.3, retries=1) as client:
            with pytest.raises(serving.UnreachableError) as caught:
                client.translate("a")
    assert str(caught.value).startswith(f"{url}: nobody listens (")
    assert "start a server with tf-transformer serve SAVED_MODEL" in str(caught.value)


def test_an_answer_without_the_outputs_is_an_error():
    with model_servers.grpc_server(lambda *_: {"other": ["A"]}) as server:
        with serving.Client(server.url) as client:
            with pytest.raises(serving.UnexpectedAnswerError, match="serving_default of 1 texts"):
                client.translate("a")


def test_messages_of_megabytes_pass(server):
    # gRPC's own limit is 4 MB.
    text = "a" * 3_000_000
    with serving.Client(server.url) as client:
        assert client.translate_document(text).translation == text.upper()
