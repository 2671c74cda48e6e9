"""TensorFlow Serving's REST API as an ASGI application, with health and a page."""

import asyncio
import html
import logging
import pathlib
import re
import reprlib
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis import get_model_metadata_pb2

from tf_transformer.errors import did_you_mean
from tf_transformer.inference.results import rows_of
from tf_transformer.inference.versions import version_number
from tf_transformer.serving.batcher import Batcher, Outputs
from tf_transformer.serving.limits import Limits
from tf_transformer.serving.served_model import Version

_FORMS = {"instances", "inputs"}  # of texts in a predict request: rows and columns
_PAGE = pathlib.Path(__file__).with_name("page.html")
# The page is one file, which contains its script and style and sends requests only to this server.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
# The status and the message to the client for each class of error.
_REFUSALS: dict[type[Exception], tuple[int, str]] = {
    ClientDisconnect: (499, "the client has gone"),
    TimeoutError: (504, "the request did not arrive, or was not answered, in time"),
}

_logger = logging.getLogger(__name__)


class RestApi:
    """The handlers of the local server."""

    def __init__(self, version: Version, limits: Limits, threads: int) -> None:
        self._version = version
        self._limits = limits
        self.batcher = Batcher(version.model, threads)

    def application(self, hosts: Sequence[str]) -> Starlette:
        """Return the ASGI application for requests to these host names."""
        routes = [Route("/healthz", self._health), Route("/", self._page)]
        for path in ("/v1/models/{model}", "/v1/models/{model}/versions/{version}"):
            routes.append(Route(f"{path}:predict", self._predict, methods=["POST"]))
            routes += [Route(f"{path}/metadata", self._metadata), Route(path, self._status)]
        return Starlette(
            routes=routes,
            middleware=[Middleware(TrustedHostMiddleware, hosts, False)],
            exception_handlers=dict.fromkeys((HTTPException, *_REFUSALS, Exception), self._refuse),
        )

    async def _predict(self, request: Request) -> Response:
        if _is_from_another_site(request):
            raise HTTPException(403, "web pages of other sites may not use this server")
        self._check_path(request)
        async with asyncio.timeout(self._limits.request_seconds):
            signatures = self._version.model.signatures
            signature, texts, is_row = parse(await self._body(request), signatures)
            outputs = await self._run(request, signature, texts)
        return _json(predictions(outputs, is_row))

    def _check_path(self, request: Request) -> None:
        """Refuse a request for another model or version."""
        if request.method != "POST" and request.url.path.endswith(":predict"):
            raise HTTPException(405, headers={"Allow": "POST"})
        name, number = self._version.name, self._version.number
        wanted = request.path_params.get("version", str(number))
        if (request.path_params["model"], version_number(wanted)) != (name, number):
            raise HTTPException(404)

    async def _body(self, request: Request) -> bytes:
        """Return the body, unless it is too long."""
        body, limit = bytearray(), self._limits.max_body_bytes
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise HTTPException(413, f"the request is larger than {limit} bytes")
        return bytes(body)

    async def _run(self, request: Request, signature: str, texts: dict[str, list[str]]) -> Outputs:
        """Run a request, unless the request is too large or its client disconnects."""
        most, most_characters = self._limits.max_texts, self._limits.max_characters
        characters = sum(len(text) for column in texts.values() for text in column)
        if max(map(len, texts.values())) > most or characters > most_characters:
            limits = f"{most:,} texts and {most_characters:,} characters"
            raise HTTPException(413, f"a request may have {limits}; divide it")
        inputs = {name: [text.encode() for text in column] for name, column in texts.items()}
        outputs = self.batcher.run(signature, inputs, characters)
        gone = asyncio.create_task(_disconnected(request))
        gone.add_done_callback(lambda _: outputs.cancel())
        try:
            return await outputs
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # the time is up
                raise
            raise ClientDisconnect from None
        finally:
            gone.cancel()

    async def _status(self, request: Request) -> Response:
        self._check_path(request)
        status = {"error_code": "OK", "error_message": ""}
        state = {"version": str(self._version.number), "state": "AVAILABLE", "status": status}
        return _json({"model_version_status": [state]})

    async def _metadata(self, request: Request) -> Response:
        self._check_path(request)
        version = self._version
        signatures = get_model_metadata_pb2.SignatureDefMap(
            signature_def=version.model.meta_graph.signature_def
        )
        content = json_format.MessageToDict(
            signatures, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        spec = {"name": version.name, "signature_name": "", "version": str(version.number)}
        return _json({"model_spec": spec, "metadata": {"signature_def": content}})

    async def _health(self, request: Request) -> Response:
        return _json({"model": self._version.name, "version": self._version.number})

    async def _page(self, request: Request) -> Response:
        languages = " ".join(self._version.manifest.get("languages", ()))
        facts = {**vars(self._limits), "model": self._version.name, "languages": languages}
        text = _PAGE.read_text(encoding="utf-8")
        text = re.sub(r"{{(\w+)}}", lambda found: html.escape(str(facts[found[1]])), text)
        return HTMLResponse(text, headers=_PAGE_HEADERS)

    async def _refuse(self, request: Request, error: Exception) -> Response:
        """Return the answer to a request that was refused or has failed."""
        status, message, headers = 500, "internal error; see the log of the server", None
        if isinstance(error, HTTPException):
            status, message, headers = error.status_code, error.detail, error.headers
            if status in (404, 405):
                what = f"nothing is served at {request.url.path:.100} for {request.method}"
                model = f"/v1/models/{self._version.name}, version {self._version.number}"
                message = f"{what}; the model is {model}, and takes texts by POST to its :predict"
        elif type(error) in _REFUSALS:
            status, message = _REFUSALS[type(error)]
        else:
            _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return _json({"error": message}, status, headers)


def parse(
    body: bytes, signatures: Mapping[str, SignatureDef]
) -> tuple[str, dict[str, list[str]], bool]:
    """Read the body of a predict request, as strictly as TensorFlow Serving does.

    Like there, columns for no input are ignored; but a key that nothing reads is an error.

    Returns:
        The signature, the same number of texts for each of its inputs, and whether the request and
        so the answer have the row form.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    keys = content.keys() if isinstance(content, dict) else set()
    for key in keys - {*_FORMS, "signature_name"}:
        advice = did_you_mean(key, [*_FORMS, "signature_name"])
        raise HTTPException(400, f"unknown key {reprlib.repr(key)}: {advice}")
    if len(keys & _FORMS) != 1:
        raise HTTPException(400, "the body must be an object with either 'instances' or 'inputs'")
    (form,) = keys & _FORMS
    given, name = content[form], content.get("signature_name", "")
    name = "serving_default" if name == "" else name
    if not isinstance(name, str) or name not in signatures:
        names = ", ".join(signatures)
        raise HTTPException(400, f"unknown signature {reprlib.repr(name)}; the model has {names}")
    inputs = sorted(signatures[name].inputs)
    needs, an_object = f"{name} needs {', '.join(inputs)}", f"an object with {', '.join(inputs)}"

    def check(is_right: Any, what: str, value: Any, where: str = "") -> None:
        if not is_right:
            message = f"{needs}: '{form}'{where} must be {what}; received {reprlib.repr(value)}"
            raise HTTPException(400, message)

    if form == "instances":
        check(given and isinstance(given, list), "a list of one text or more", given)
        if len(inputs) > 1 or any(isinstance(row, dict) for row in given):
            for number, row in enumerate(given):
                is_right = isinstance(row, dict) and row.keys() == {*inputs}
                check(is_right, an_object, row, f"[{number}]")
            given = {key: [row[key] for row in given] for key in inputs}
    if len(inputs) == 1 and not isinstance(given, dict):
        given = {inputs[0]: given}
    check(isinstance(given, dict), an_object, given)
    texts = {key: given.get(key) for key in inputs}
    for key, column in texts.items():
        check(isinstance(column, list), f"a list of texts for {key}", column)
        for number, text in enumerate(column):
            check(isinstance(text, str), f"a string for {key}", text, f"[{number}]")
    check(len({*map(len, texts.values())}) == 1, "as many texts for each", given)
    return name, texts, form == "instances"


def predictions(outputs: Outputs, is_row: bool) -> dict[str, Any]:
    """Return the content of an answer, in which a single output has no name.

    Raises:
        ValueError: If a number is not finite, which JSON cannot express, or if the row form is
            wanted and the outputs have different numbers of rows.
    """
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite")
    if len(outputs) == 1:
        (values,) = outputs.values()
        return {"predictions" if is_row else "outputs": values}
    return {"predictions": rows_of(outputs)} if is_row else {"outputs": outputs}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value.decode("utf-8", "replace")


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # JSON of plain values, NumPy arrays, and bytes, which are written as text.
    body = orjson.dumps(content, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")


def _is_from_another_site(request: Request) -> bool:
    """Return whether a browser sent the request on behalf of a page of another site."""
    site, origin, host = (request.headers.get(n) for n in ("sec-fetch-site", "origin", "host"))
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and urllib.parse.urlsplit(origin).netloc != host


async def _disconnected(request: Request) -> None:
    """Wait until the client of a request has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
