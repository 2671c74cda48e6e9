"""The client, and what docs/serving.md says of clients, against the local server of an export."""

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import model_servers
import numpy as np
import pytest

pytest.importorskip("uvicorn")

from tf_transformer import serving
from tf_transformer.serving import LocalServer
from tf_transformer.serving import client as client_file
from tf_transformer.serving.session import SavedModelSession

ROOT = Path(__file__).parents[1]
UNUSUAL = ["", "\0", "a\0", "\udfff", "a\nb", "🙂 a b", " a ", "</s>"]
CLIENTS = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8").partition("\n## Clients\n")[2]
EXAMPLES = re.findall(r"```(sh|python)\n(.*?)```", CLIENTS.partition("\n## ")[0], re.DOTALL)


@pytest.fixture(scope="module")
def servable(exported_version):
    return SavedModelSession(exported_version, threads=1)


@pytest.fixture(scope="module")
def server(exported_version, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "demo"
    shutil.copytree(exported_version, folder / "3")
    with LocalServer(folder, unverified=True) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with serving.Client(server.url, batch_size=8) as client:
        yield client


def in_a_session(servable, query, rows):
    """What a query should give, computed in a session of this process."""
    encoded = [[text.encode("utf-8", "replace") for text in row] for row in rows]
    inputs = dict(zip(query.inputs, zip(*encoded, strict=True), strict=True))
    outputs = servable.run(query.signature, inputs)
    columns = [model_servers.decoded(outputs[name].tolist()) for name in query.outputs]
    return [query.result(*row) for row in zip(*columns, strict=True)]


def same(found, expected):
    """Whether results are the same, their numbers nearly."""
    if isinstance(expected, np.ndarray | float):
        return np.shape(found) == np.shape(expected) and np.allclose(found, expected, atol=1e-4)
    if isinstance(expected, list | tuple) and len(found) == len(expected):
        return all(map(same, found, expected))
    return found == expected


@pytest.mark.parametrize("name", ["translate", "translate_nbest", "translate_document"])
def test_texts_by_rest_are_those_of_a_session(client, servable, sentences, name):
    texts = sentences[:20] + UNUSUAL
    query = getattr(client_file, f"_{name.upper()}")
    assert same(getattr(client, name)(texts), in_a_session(servable, query, [[t] for t in texts]))


@pytest.mark.parametrize("name", ["score", "align"])
def test_pairs_by_rest_are_those_of_a_session(client, servable, sentences, name):
    pairs = [*itertools.pairwise(sentences[:20]), ("", "a"), ("a", ""), ("\0", "b")]
    query = getattr(client_file, f"_{name.upper()}")
    found = getattr(client, name)(*zip(*pairs, strict=True))
    assert same(found, in_a_session(servable, query, pairs))


def test_status_and_metadata_of_the_local_server(client, server, servable):
    assert [(each["version"], each["state"]) for each in client.status()] == [("3", "AVAILABLE")]
    signatures = client.metadata()["metadata"]["signature_def"]["signature_def"]
    assert servable.signatures.keys() <= signatures.keys()
    with serving.Client(server.url, version=3) as third:
        assert third.translate("a b") == client.translate("a b")
    with serving.Client(server.url, version=4) as fourth:
        with pytest.raises(serving.NotFoundError, match=r"versions/4: status 404: nothing is"):
            fourth.translate("a")


def test_a_text_over_the_servers_limit_is_refused_with_its_reason(client):
    with pytest.raises(serving.BadRequestError, match="status 413: a request may have 64 texts"):
        client.translate(["a", "a" * 100_001])


@pytest.mark.parametrize(("language", "code"), EXAMPLES)
def test_the_examples_of_the_documentation(server, client, tmp_path, language, code):
    with model_servers.grpc_server() as by_grpc:
        code = code.replace("http://127.0.0.1:8501", server.address)
        code = code.replace("grpc://127.0.0.1:8500/demo", by_grpc.url)
        assert "850" not in code.replace(str(server.address), "").replace(by_grpc.url, "")
        command = {"sh": ["sh", "-ec", code], "python": [sys.executable, "-c", code]}[language]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    expected = client.translate("Wo ist der Bahnhof?")
    assert ("WO IST DER BAHNHOF?" if by_grpc.requests else expected) in done.stdout


def test_the_examples_are_found():
    assert [language for language, _ in EXAMPLES] == ["sh", "python", "python", "python"]
