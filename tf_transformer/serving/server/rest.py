"""TensorFlow Serving's REST API, version 2.20: requests and answers as JSON.

After `json_tensor.cc`, `http_rest_api_handler.cc` and `http_rest_api_util.cc` of its sources.
Statuses, names, shapes and the order of the checks are the same. What differs:

- Inputs are texts: a signature with other inputs than strings of shape (B,) is refused, status 501.
  All inputs of the column form must have as many texts, batching or not.
- A body that is not UTF-8 is refused, and so is base64 of such bytes; TensorFlow Serving passes
  them on. Bytes that are not UTF-8 in an output become U+FFFD; it writes them as they are.
- White space between the parts of an answer differs, and a float has the shortest digits that are
  exact when they are read as float32, where it has six or nine.
- Errors of the JSON parser, of tensors of a wrong shape and of the model are worded differently.
- Of a key that comes twice the last counts, not the first. `Inf` is not understood, `Infinity` is.
- `classify` and `regress` are refused, status 400, as it does for signatures that predict.
- A compressed body is refused, status 415. Limits are refused with 408, 413, 429, 503 and 504.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import json_format
from tensorflow_serving.apis import get_model_metadata_pb2

from tf_transformer.serving.servable import TensorSpec

DEFAULT_SIGNATURE = "serving_default"
_LONGEST_QUOTE = 256
_TYPES = {True: "True", False: "False", type(None): "Null"}
_decode = json.JSONDecoder().raw_decode
_encode = json.JSONEncoder(ensure_ascii=False).encode


class RestError(Exception):
    """A request that is not answered, with the HTTP status and what the answer says instead."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Document(NamedTuple):
    """The body of a predict request.

    Attributes:
        signature: The signature's name.
        content: The whole body, an object.
    """

    signature: str
    content: dict[str, Any]

    @property
    def is_row(self) -> bool:
        """Whether it has the row form, whose answer has it too."""
        return "instances" in self.content


def parse(body: bytes | bytearray) -> Document:
    """Reads the body of a predict request as far as no model is needed.

    Raises:
        RestError: Status 400.
    """
    if not body:
        raise RestError(400, "JSON Parse error: The document is empty")
    try:
        text = body.decode("utf-8-sig").lstrip()
        content, _ = _decode(text)  # what follows the document is ignored, as there
    except UnicodeDecodeError as error:
        raise RestError(
            400, f"JSON Parse error: Invalid encoding at offset: {error.start}"
        ) from None
    except json.JSONDecodeError as error:
        raise RestError(400, f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except RecursionError:
        raise RestError(400, "JSON Parse error: The document is nested too deeply") from None
    except ValueError:
        raise RestError(400, "JSON Parse error: A number is too long") from None
    if not isinstance(content, dict):
        raise RestError(400, f"JSON Value: {_quote(content)} Is not object")
    signature = content.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(signature, str):
        raise RestError(
            400,
            f"JSON Value: {_quote(content)} not formatted correctly. 'signature_name' key must be "
            f"a string value.",
        )
    return Document(signature or DEFAULT_SIGNATURE, content)


def read_texts(
    document: Document, inputs: Mapping[str, TensorSpec]
) -> tuple[dict[str, list[bytes]], int]:
    """The texts of a predict request.

    Args:
        document: The request.
        inputs: The inputs of its signature.

    Returns:
        For each input as many texts, in UTF-8, and how many characters these are together.

    Raises:
        RestError: Status 400, or 501 for a signature whose inputs are no texts.
    """
    for name, spec in inputs.items():
        if spec.dtype != "string" or len(spec.shape) != 1:
            raise RestError(501, f"input {name} takes no texts, and this server gives no other")
    if "instances" in document.content and "inputs" in document.content:
        raise RestError(
            400,
            f"JSON Value: {_quote(document.content)} Not formatted correctly expecting only one "
            f"of 'inputs' or 'instances' keys to exist ",
        )
    if "instances" in document.content:
        texts = _from_rows(document.content, sorted(inputs))
    elif "inputs" in document.content:
        texts = _from_columns(document.content["inputs"], sorted(inputs))
    else:
        raise RestError(400, "Missing 'inputs' or 'instances' key")
    characters = sum(len(text) for column in texts.values() for text in column)
    return {name: [_utf8(text) for text in column] for name, column in texts.items()}, characters


def write_outputs(outputs: Mapping[str, np.ndarray], is_row: bool) -> bytes:
    """The answer to a predict request.

    Args:
        outputs: Arrays of any shape.
        is_row: Whether the request had the row form.

    Raises:
        RestError: Status 400; the row form needs as many rows in each output.
    """
    if not is_row:
        parts = {name: _column(array, name) for name, array in outputs.items()}
        return f'{{"outputs": {_object(parts)}}}'.encode()
    size = None
    for name, array in outputs.items():
        if not array.ndim:
            raise RestError(400, f"Tensor name: {name} has no shape information ")
        if size not in (None, len(array)):
            raise RestError(
                400,
                f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {size}",
            )
        size = len(array)
    columns = [_rows(array, name) for name, array in outputs.items()]
    rows = (_object(dict(zip(outputs, row, strict=True))) for row in zip(*columns, strict=True))
    return f'{{"predictions": [{", ".join(rows)}]}}'.encode()


def write_error(message: str) -> bytes:
    """The answer to a request that is refused."""
    return _encode({"error": message}).encode("utf-8", "replace")


def write_status(states: Mapping[int, tuple[str, str]]) -> bytes:
    """The states of versions.

    Args:
        states: For each version its state, and what is wrong with it, or an empty string.
    """
    return _encode(
        {
            "model_version_status": [
                {
                    "version": str(number),
                    "state": state,
                    "status": {
                        "error_code": "DATA_LOSS" if error else "OK",
                        "error_message": error,
                    },
                }
                for number, (state, error) in states.items()
            ]
        }
    ).encode()


def write_metadata(name: str, number: int, meta_graph: Any) -> bytes:
    """The signatures of a version."""
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for key, signature in meta_graph.signature_def.items():
        signatures.signature_def[key].CopyFrom(signature)
    as_json = json_format.MessageToDict(
        signatures, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _encode(
        {
            "model_spec": {"name": name, "signature_name": "", "version": str(number)},
            "metadata": {"signature_def": as_json},
        }
    ).encode()


def _from_rows(content: dict[str, Any], names: Sequence[str]) -> dict[str, list[str]]:
    rows = content["instances"]
    if not isinstance(rows, list):
        raise RestError(
            400, f"JSON Value: {_quote(content)} Expecting 'instances' to be an list/array"
        )
    if not rows:
        raise RestError(400, f"JSON Value: {_quote(content)} No values in 'instances' array")
    if not isinstance(rows[0], dict) and len(names) > 1:
        raise RestError(
            400,
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map",
        )
    are_objects = _is_object(rows[0])
    texts: dict[str, list[str]] = {name: [] for name in names}
    for number, row in enumerate(rows):
        if _is_object(row) != are_objects:
            needed = "object but got list" if are_objects else "value/list but got object"
            raise RestError(400, f"Expecting {needed} at item {number} of input list")
        for key, value in row.items() if are_objects else [(names[0], row)]:
            try:
                if key not in texts:
                    raise RestError(400, f"JSON object: does not have named input: {key}")
                texts[key].append(_text(value))
            except RestError as error:
                where = f"{number} key: {key}" if are_objects else number
                raise RestError(
                    400,
                    f"Failed to process element: {where} of 'instances' list. "
                    f"Error: INVALID_ARGUMENT: {error.message}",
                ) from None
        if are_objects and len(row) != len(names):
            raise RestError(
                400,
                f"Failed to process element: {number} of 'instances' list. JSON object: "
                f"{_quote(row)} keys must be equal to: {','.join(names)}",
            )
    return texts


def _from_columns(columns: Any, names: Sequence[str]) -> dict[str, list[str]]:
    if not _is_object(columns):
        if len(names) > 1:
            raise RestError(
                400,
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map",
            )
        columns = {names[0]: columns}
    texts = {}
    for name in names:
        if name not in columns:
            raise RestError(400, f"Missing named input: {name} in 'inputs' object.")
        if not isinstance(columns[name], list):
            raise RestError(
                400, f"input {name} must be a list of texts: JSON Value: {_quote(columns[name])}"
            )
        texts[name] = [_text(value) for value in columns[name]]
    if len({len(column) for column in texts.values()}) > 1:
        raise RestError(400, "Batching input tensors must have equal 0th-dimension size")
    return texts


def _is_object(value: Any) -> bool:
    """Whether it is an object that stands for itself and not for bytes."""
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: dict) -> bool:
    return value.keys() == {"b64"} and isinstance(value["b64"], str)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        raise RestError(400, "Encountered list at unexpected level: 1 expected < 1")
    if not isinstance(value, dict):
        kind = _TYPES.get(value if isinstance(value, bool) else type(value), "Number")
        raise RestError(
            400,
            f"JSON Value: {_quote(value)} Type: {kind} is not of expected type: string",
        )
    if not _is_base64(value):
        raise RestError(400, f"JSON Value: {_quote(value)} not formatted correctly for base64 data")
    try:
        padding = "=" * (-len(value["b64"]) % 4)
        return base64.b64decode(value["b64"] + padding, validate=True).decode()
    except UnicodeDecodeError:
        raise RestError(400, "base64 of bytes that are not UTF-8; send text in UTF-8") from None
    except (binascii.Error, ValueError):
        raise RestError(400, "Unable to base64 decode") from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RestError(400, "JSON Parse error: The surrogate pair in string is invalid") from None


def _column(array: np.ndarray, name: str) -> str:
    return f"[{', '.join(_rows(array, name))}]" if array.ndim else _encode(_plain(array, name))


def _rows(array: np.ndarray, name: str) -> list[str]:
    """The rows in JSON; each alone, since no other thread runs while the encoder does."""
    return [_encode(row) for row in _plain(array, name)]


def _plain(array: np.ndarray, name: str) -> Any:
    """An array as lists of what JSON has."""
    convert: Callable[[Any], Any] | None = None
    if array.dtype == object and name.endswith("_bytes"):
        convert = _base64
    elif array.dtype == object:
        convert = _string
    elif array.dtype == np.float32:
        array = array.astype(str).astype(float)  # the shortest digits that are exact
    values = array.tolist()
    return _map(convert, values) if convert else values


def _map(convert: Callable[[Any], Any], values: Any) -> Any:
    if isinstance(values, list):
        return [_map(convert, value) for value in values]
    return convert(values)


def _base64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _string(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _object(parts: Mapping[str, str]) -> str:
    """An object of values in JSON; a single value stands for itself."""
    if len(parts) == 1:
        (value,) = parts.values()
        return value
    return "{" + ", ".join(f"{_encode(name)}: {value}" for name, value in parts.items()) + "}"


def _quote(value: Any) -> str:
    """A value in a message, at most 256 characters of it."""
    try:
        return _encode(value)[:_LONGEST_QUOTE]
    except RecursionError:
        return "(nested too deeply)"
