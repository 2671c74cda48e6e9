"""The local server's application: TensorFlow Serving's REST API, health, metrics and a page."""

import asyncio
import html
import json
import logging
import pathlib
import re
import time

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tf_transformer.serving.server import metrics, rest
from tf_transformer.serving.server.batching import Batcher
from tf_transformer.serving.server.limits import Limits
from tf_transformer.serving.server.predict import Predictor
from tf_transformer.serving.server.rest import RestError
from tf_transformer.serving.server.versions import Versions

_VERSION = r"(?:/versions/(\d+)|/labels/([^/:]+))?"
_PREDICT = re.compile(
    rf"/v1/models/([^/:]+){_VERSION}:(classify|regress|predict)", re.IGNORECASE | re.ASCII
)
_STATUS = re.compile(
    rf"/v1/models(?:/([^/:]+))?{_VERSION}(?:/(metadata))?", re.IGNORECASE | re.ASCII
)
_GREATEST_NUMBER = 2**63 - 1
_GONE = 499  # for the metrics; nobody is there to see it
_PAGE = pathlib.Path(__file__).with_name("page.html")
# The page is one file with its script and style inside, and asks this server alone.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
_HEADERS = {408: {"Connection": "close"}, 429: {"Retry-After": "1"}}

_logger = logging.getLogger(__name__)


class Application:
    """The handlers of one server.

    Args:
        versions: The model.
        batcher: What runs requests.
        limits: What a request may ask.
        counts: What counts them.

    Attributes:
        cut_off: Requests that were not answered before the server had to end.
    """

    def __init__(
        self, versions: Versions, batcher: Batcher, limits: Limits, counts: metrics.Metrics
    ) -> None:
        self._versions = versions
        self._predictor = Predictor(versions, batcher, limits, counts)
        self._counts = counts
        self.cut_off = 0

    def asgi(self, hosts: list[str] | None) -> ASGIApp:
        """The ASGI application.

        Args:
            hosts: The names by which it may be asked, so that no web site can let a browser ask by
                a name of its own; None is any.
        """
        routes = [
            Mount("/v1", self._v1),
            Route("/healthz", self._health),
            Route("/metrics", self._metrics),
            Route("/", self._page),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(TrustedHostMiddleware, hosts, False)] if hosts else [],
            exception_handlers={404: _no_page, 405: _no_page},
        )

    async def _v1(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        started = time.monotonic()
        try:
            response = _json(200, await self._answer(request))
        except RestError as error:
            response = _error(error.status, error.message)
        except ClientDisconnect:
            response = _error(_GONE, "the client has gone")
        except asyncio.CancelledError:
            self.cut_off += 1
            response = _error(503, "the server has stopped")
        except Exception:
            _logger.exception("%s %s failed", request.method, scope["path"])
            response = _error(500, "internal error; see the log of the server")
        if request.method == "POST":
            signature = getattr(request.state, "signature", "")
            self._counts.answered(signature, response.status_code, time.monotonic() - started)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> bytes:
        path = request.scope["path"]
        if request.method == "POST" and (match := _PREDICT.fullmatch(path)):
            name, number, label, method = match.groups()
            if method.lower() != "predict":
                raise RestError(400, f"the signatures of this model are for predict, not {method}")
            return await self._predictor.answer(request, name, _number(number), label)
        if request.method == "GET" and (match := _STATUS.fullmatch(path)):
            name, number, label, metadata = match.groups()
            if name is None:
                raise RestError(400, "Missing model name in request.")
            if label is not None:
                raise RestError(400, f"Unrecognized servable version label: {label}")
            return self._describe(name, _number(number), bool(metadata))
        raise RestError(400, f"Malformed request: {request.method} {path}")

    def _describe(self, name: str, number: int | None, metadata: bool) -> bytes:
        known = name == self._versions.name
        if metadata:
            version = self._versions.acquire(number) if known else None
            if version is None:
                wanted = f"Latest({name})" if number is None else f"Specific({name}, {number})"
                raise RestError(404, f"Servable not found for request: {wanted}")
            try:
                return rest.write_metadata(name, version.number, version.servable.meta_graph)
            finally:
                self._versions.release(version)
        states = self._versions.states() if known else {}
        if number is not None:
            if number not in states:
                raise RestError(404, f"Could not find version {number} of model {name}")
            states = {number: states[number]}
        if not states:
            raise RestError(404, f"Could not find any versions of model {name}")
        return rest.write_status(states)

    async def _health(self, request: Request) -> Response:
        version = self._versions.current
        content = {"model": self._versions.name, "version": version.number if version else None}
        return _json(200 if version else 503, json.dumps(content).encode())

    async def _metrics(self, request: Request) -> Response:
        return Response(self._counts.page(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _page(self, request: Request) -> Response:
        if not _PAGE.is_file():
            return _error(404, "this version of the package has no page")
        text = _PAGE.read_text(encoding="utf-8")
        text = text.replace("{{model}}", html.escape(self._versions.name))
        return HTMLResponse(text, headers=_PAGE_HEADERS)


async def overloaded(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application of connections that are too many."""
    response = _error(503, "too many connections are open; try again later")
    response.headers.update({"Connection": "close", "Retry-After": "1"})
    await response(scope, receive, send)


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if len(text) > len(str(_GREATEST_NUMBER)) or int(text) > _GREATEST_NUMBER:
        raise RestError(400, f"Failed to convert version: {text} to numeric.")
    return int(text)


async def _no_page(request: Request, error: Exception) -> Response:
    return _error(error.status_code, f"nothing is at {request.method} {request.url.path}")


def _json(status: int, content: bytes) -> Response:
    return Response(content, status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    response = _json(status, rest.write_error(message))
    response.headers.update(_HEADERS.get(status, {}))
    return response
