"""The JSON of TensorFlow Serving's REST API: its two forms, its errors, and its numbers."""

import base64
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import FLOAT, MODEL, PREDICT, TEXT, ask, serving

from tf_transformer.serving.session import SavedModelSession, TensorSpec
from tf_transformer.serving.server import rest
from tf_transformer.serving.server.rest import RestError

ONE = {"text": TEXT}
TWO = {"source": TEXT, "target": TEXT}


def read(content, inputs=ONE):
    """The texts of a body, and their characters."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return rest.read_texts(rest.parse(body), inputs)


@pytest.mark.parametrize(
    ("content", "inputs", "texts"),
    [
        ({"instances": ["a", "ü"]}, ONE, {"text": ["a", "ü"]}),
        ({"instances": [{"text": "a"}, {"text": "b"}]}, ONE, {"text": ["a", "b"]}),
        ({"instances": [{"source": "a", "target": "b"}]}, TWO, {"source": ["a"], "target": ["b"]}),
        ({"inputs": ["a", "b"]}, ONE, {"text": ["a", "b"]}),
        ({"inputs": []}, ONE, {"text": []}),
        ({"inputs": {"text": ["a"]}}, ONE, {"text": ["a"]}),
        ({"inputs": {"text": ["a"], "more": [1]}}, ONE, {"text": ["a"]}),
        ({"inputs": {"target": ["b"], "source": ["a"]}}, TWO, {"source": ["a"], "target": ["b"]}),
        (b'\xef\xbb\xbf {"instances": ["a"]} and what follows', ONE, {"text": ["a"]}),
        (b'{"instances": ["a\\u0000\\ud83d\\ude00"], "x": NaN}', ONE, {"text": ["a\0😀"]}),
    ],
)
def test_both_forms_are_read(content, inputs, texts):
    found, characters = read(content, inputs)
    assert found == {name: [text.encode() for text in column] for name, column in texts.items()}
    assert characters == sum(len(text) for column in texts.values() for text in column)


def test_base64_gives_any_text():
    encoded = base64.b64encode("ü\0".encode()).decode()
    for text in (encoded, encoded.rstrip("=")):
        for value in ({"b64": text}, {"text": {"b64": text}}):
            assert read({"instances": [value]}) == ({"text": ["ü\0".encode()]}, 2)
    expected = ({"text": ["ü\0".encode(), b"b"]}, 3)
    assert read({"inputs": {"text": [{"b64": encoded}, "b"]}}) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"instances = [1]", "JSON Parse error: .* at offset: 0"),
        (b'{"instances": ["a"', "JSON Parse error: .* at offset: 18"),
        (b'{"instances": ["\xff"]}', "JSON Parse error: Invalid encoding at offset: 16"),
        (b'{"instances": ["a\nb"]}', "JSON Parse error: Invalid control character"),
        (b'{"instances": ["\\ud800"]}', "surrogate pair in string is invalid"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"instances": [' + b"1" * 10_000 + b"]}", "A number is too long"),
        (b"[1]", r"JSON Value: \[1\] Is not object"),
        ({"signature_name": 100}, "'signature_name' key must be a string value."),
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"instances": ["a"], "inputs": ["a"]}, "only one of 'inputs' or 'instances' keys"),
        ({"instances": "a"}, "Expecting 'instances' to be an list/array"),
        ({"instances": []}, "No values in 'instances' array"),
        ({"instances": ["a", 5]}, "element: 1 of .* JSON Value: 5 Type: Number is not of expected"),
        ({"instances": [None]}, "Value: null Type: Null is not of expected type: string"),
        ({"instances": [True]}, "Value: true Type: True is not of expected type: string"),
        ({"instances": [["a"]]}, "Encountered list at unexpected level"),
        ({"instances": ["a", {"text": "b"}]}, "value/list but got object at item 1"),
        ({"instances": [{"text": "a"}, "b"]}, "object but got list at item 1"),
        ({"instances": [{}]}, "JSON object: {} keys must be equal to: text"),
        ({"instances": [{"txt": "a"}]}, "element: 0 key: txt .* does not have named input: txt"),
        ({"instances": [{"b64": "a"}]}, "Unable to base64 decode"),
        ({"instances": [{"b64": "ü"}]}, "Unable to base64 decode"),
        (
            {"instances": ["a", {"b64": "YWL/"}]},
            "element: 1 of .* base64 of bytes that are not UTF-8",
        ),
        ({"inputs": {"text": [{"b64": "7aCA"}]}}, "base64 of bytes that are not UTF-8"),
        ({"instances": [{"text": {"c": 1}}]}, "not formatted correctly for base64 data"),
        ({"inputs": "a"}, 'must be a list of texts: JSON Value: "a"'),
        ({"inputs": {"txt": ["a"]}}, "Missing named input: text in 'inputs' object."),
        ({"inputs": [1.5]}, "JSON Value: 1.5 Type: Number is not of expected type: string"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value)[:40],
)
def test_a_bad_body_is_named_as_tensorflow_serving_names_it(body, message):
    with pytest.raises(RestError, match=message) as caught:
        read(body)
    assert caught.value.status == 400
    assert len(caught.value.message) < 600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"instances": ["a"]}, "instances is a plain list, but expecting list of objects"),
        ({"instances": [{"source": "a"}]}, "keys must be equal to: source,target"),
        ({"inputs": ["a"]}, "inputs is a plain value/list, but expecting an object"),
        ({"inputs": {"source": ["a"]}}, "Missing named input: target in 'inputs' object."),
        ({"inputs": {"source": ["a"], "target": []}}, "must have equal 0th-dimension size"),
    ],
)
def test_a_bad_body_for_two_inputs_is_named(content, message):
    with pytest.raises(RestError, match=message) as caught:
        read(content, TWO)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "spec", [FLOAT, TensorSpec("string", (None, None)), TensorSpec("string", ())]
)
def test_inputs_that_are_no_texts_are_refused(spec):
    with pytest.raises(RestError, match="input x takes no texts") as caught:
        read({"instances": ["a"]}, {"x": spec})
    assert caught.value.status == 501


OUTPUTS = {
    "texts": np.array([[b"a", 'ü"\n\u2028'.encode()], [b"", b"\0"]], object),
    "scores": np.array([0.1, -1e9], np.float32),
    "lengths": np.array([3, 4], np.int32),
    "truncated": np.array([True, False]),
}


def test_several_outputs_are_objects_in_both_forms():
    rows = json.loads(rest.write_outputs(OUTPUTS, is_row=True))
    assert rows == {
        "predictions": [
            {"texts": ["a", 'ü"\n\u2028'], "scores": 0.1, "lengths": 3, "truncated": True},
            {"texts": ["", "\0"], "scores": -1e9, "lengths": 4, "truncated": False},
        ]
    }
    columns = json.loads(rest.write_outputs(OUTPUTS, is_row=False))["outputs"]
    assert columns == {
        name: [row[name] for row in rows["predictions"]] for name in rows["predictions"][0]
    }


@pytest.mark.parametrize(
    ("is_row", "key"), [(True, "predictions"), (False, "outputs")], ids=["row", "column"]
)
def test_one_output_stands_for_itself(is_row, key):
    for texts in ([b"a", b"b"], [b"a"], []):
        found = rest.write_outputs({"translation": np.array(texts, object)}, is_row)
        assert json.loads(found) == {key: [text.decode() for text in texts]}


def test_bytes_that_are_no_utf8_are_replaced_or_base64():
    outputs = {"text": np.array([b"a\xff"], object), "raw_bytes": np.array([b"a\xff"], object)}
    found = json.loads(rest.write_outputs(outputs, is_row=True).decode())
    assert found == {"predictions": [{"text": "a\ufffd", "raw_bytes": {"b64": "Yf8="}}]}


def test_outputs_without_rows_have_the_column_form_alone():
    outputs = {"total": np.array(2.5, np.float64)}
    assert json.loads(rest.write_outputs(outputs, is_row=False)) == {"outputs": 2.5}
    with pytest.raises(RestError, match="has no shape information"):
        rest.write_outputs(outputs, is_row=True)
    outputs = {"a": np.zeros(2), "b": np.zeros(3)}
    with pytest.raises(RestError, match="b has inconsistent batch size: 3 expecting: 2"):
        rest.write_outputs(outputs, is_row=True)


@given(st.lists(st.floats(width=32), min_size=1))
def test_floats_are_short_and_exact(values):
    array = np.array(values, np.float32)
    written = rest.write_outputs({"scores": array}, is_row=False)
    found = np.array(json.loads(written)["outputs"], np.float32)
    np.testing.assert_array_equal(found, array)
    assert len(written) < 20 * len(values) + 20


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3)))
def test_any_text_comes_back(rows):
    width = max(map(len, rows), default=0)
    rows = [row + [""] * (width - len(row)) for row in rows]
    array = np.empty((len(rows), width), object)
    array[:] = [[text.encode() for text in row] for row in rows] or array
    written = rest.write_outputs({"texts": array}, is_row=True)
    assert json.loads(written.decode()) == {"predictions": rows}
    texts = [text for row in rows for text in row]
    found, characters = read({"inputs": texts})
    assert found == {"text": [text.encode() for text in texts]}
    assert characters == sum(map(len, texts))


# Through a server


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("stub")) as (server, _):
        yield server


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/foo", 400, "Malformed request: GET /v1/foo"),
        ("GET", "/v1/models/demo/foo", 400, "Malformed request: GET /v1/models/demo/foo"),
        ("GET", "/v1/models/demo:predict", 400, "Malformed request: GET /v1/models/demo:predict"),
        ("PUT", "/v1/models/demo", 400, "Malformed request: PUT /v1/models/demo"),
        ("POST", "/v1/models/demo", 400, "Malformed request: POST /v1/models/demo"),
        ("POST", "/v1/models/demo/metadata", 400, "Malformed request: POST"),
        ("POST", "/v1/models/demo/versions/x:predict", 400, "Malformed request: POST"),
        ("POST", f"/v1/models/demo/versions/{2**63}:predict", 400, "Failed to convert version: 92"),
        ("POST", f"/v1/models/demo/versions/{'1' * 5000}:predict", 400, "Failed to convert"),
        ("GET", f"/v1/models/demo/versions/{2**63}", 400, "Failed to convert version: 92"),
        ("POST", "/v1/models/demo/labels/new:predict", 400, "Unrecognized .* label: new"),
        ("GET", "/v1/models/demo/labels/new", 400, "Unrecognized servable version label: new"),
        ("POST", "/v1/models/demo:classify", 400, "for predict, not classify"),
        ("POST", "/v1/models/other:predict", 404, r"Servable not found .* Latest\(other\)"),
        ("POST", "/v1/models/demo/versions/7:predict", 404, r"Servable .* Specific\(demo, 7\)"),
        ("GET", "/v1/models/other", 404, "Could not find any versions of model other"),
        ("GET", "/v1/models/demo/versions/7", 404, "Could not find version 7 of model demo"),
        ("GET", "/v1/models/other/metadata", 404, r"Servable not found .* Latest\(other\)"),
        ("GET", "/v1/models/demo/versions/7/metadata", 404, r"Specific\(demo, 7\)"),
        ("GET", "/V1/models/demo", 404, "nothing is at GET /V1/models/demo"),
        ("POST", "/healthz", 405, "nothing is at POST /healthz"),
    ],
)
def test_a_bad_path_is_named(stub, method, path, status, message):
    body = {"instances": ["a"]} if method == "POST" else None
    found, _, content = ask(stub, path, body, method)
    assert found == status
    assert list(content) == ["error"]
    assert re.search(message, content["error"]), content


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        # The body comes first, and the model before the signature.
        ("/v1/models/other:predict", b"[", 400, "JSON Parse error"),
        ("/v1/models/other:predict", {"signature_name": 1}, 400, "signature_name"),
        ("/v1/models/other:predict", {"signature_name": "x"}, 404, "Servable not found"),
        (PREDICT, {"signature_name": "x", "instances": []}, 400,
         'Serving signature name: "x" not found in signature def'),
        (PREDICT, {"signature_name": "score", "instances": ["a"]}, 400, "list of objects"),
        (PREDICT, {"signature_name": "numbers", "instances": [1]}, 501, "takes no texts"),
        (PREDICT, {"instances": ["fail"]}, 500, "internal error"),
    ],
)  # fmt: skip
def test_the_checks_have_the_order_of_tensorflow_serving(stub, path, body, status, message):
    found, headers, content = ask(stub, path, body)
    assert (found, headers["content-type"]) == (status, "application/json")
    assert message in content["error"]


@pytest.mark.parametrize(
    "path", [PREDICT, f"{MODEL}/versions/1:predict", "/v1/MODELS/demo:Predict"]
)
def test_a_request_is_answered_by_every_path(stub, path):
    body = {"signature_name": "", "instances": ["a"]}
    assert ask(stub, path, body)[::2] == (200, {"predictions": ["A"]})


def test_pairs_are_answered(stub):
    body = {"signature_name": "score", "instances": [{"source": "ab", "target": "c"}] * 2}
    assert ask(stub, body=body)[::2] == (200, {"predictions": [{"ratio": 2, "same": False}] * 2})


def test_the_status_is_that_of_tensorflow_serving(stub):
    status = {"error_code": "OK", "error_message": ""}
    states = [{"version": "1", "state": "AVAILABLE", "status": status}]
    for path in (MODEL, f"{MODEL}/versions/1"):
        assert ask(stub, path)[::2] == (200, {"model_version_status": states})


# A real export


@pytest.fixture(scope="module")
def real(echo, tmp_path_factory):
    """A server of the SavedModel that echoes, and that SavedModel in a session."""
    model = SavedModelSession(echo / "1", threads=1)
    with serving(tmp_path_factory.mktemp("real"), load=lambda _: model) as (server, _):
        yield server, model


def test_an_export_answers_as_in_a_session(real):
    server, model = real
    texts = ["eins zwei", "", "drei\nvier", "ü</s> 😀\0", "x" * 300]
    expected = model.run("serving_default", {"text": [text.encode() for text in texts]})
    expected = [text.decode() for text in expected["translation"]]
    assert expected[0] == "eins zwei"
    assert ask(server, body={"instances": texts})[::2] == (200, {"predictions": expected})
    assert ask(server, body={"inputs": texts})[::2] == (200, {"outputs": expected})
    columns = model.run("translate_nbest", {"text": ["eins zwei", "drei"]})
    body = {"signature_name": "translate_nbest", "inputs": {"text": ["eins zwei", "drei"]}}
    status, _, content = ask(server, body=body)
    assert status == 200 and set(content["outputs"]) == set(columns)
    for name, array in columns.items():
        found = content["outputs"][name]
        if array.dtype == object:
            assert found == [[text.decode() for text in row] for row in array]
        else:
            np.testing.assert_array_equal(np.array(found, array.dtype), array)
    body = {"signature_name": "translate_nbest", "instances": ["eins zwei", "drei"]}
    rows = ask(server, body=body)[2]["predictions"]
    assert rows == [{name: content["outputs"][name][row] for name in columns} for row in (0, 1)]


def test_the_metadata_has_the_signatures_as_tensorflow_serving_writes_them(real):
    status, _, content = ask(real[0], f"{MODEL}/metadata")
    assert status == 200
    assert content["model_spec"] == {"name": "demo", "signature_name": "", "version": "1"}
    signatures = content["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"__saved_model_init_op", *real[1].signatures}
    text = signatures["serving_default"]["inputs"]["text"]
    assert text["dtype"] == "DT_STRING"
    shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    assert text["tensor_shape"] == shape
    assert signatures["serving_default"]["method_name"] == "tensorflow/serving/predict"
    assert signatures["serving_default"]["defaults"] == {}
