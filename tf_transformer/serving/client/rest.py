"""The client's way to a server by REST; without TensorFlow."""

import contextlib
import json
import random
import re
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import urllib3
from urllib3 import exceptions

from tf_transformer.serving.client.errors import (
    BadRequestError,
    NotFoundError,
    OverloadedError,
    ServingError,
    ServingTimeoutError,
    UnexpectedAnswerError,
    UnreachableError,
)
from tf_transformer.serving.client.transport import RequestLimits, Transport

_RETRIED = frozenset({429, 502, 503})
_KINDS: dict[int, type[ServingError]] = {
    400: BadRequestError,
    404: NotFoundError,
    408: ServingTimeoutError,
    412: BadRequestError,
    413: BadRequestError,
    422: BadRequestError,
    429: OverloadedError,
    503: OverloadedError,
    504: ServingTimeoutError,
}
_READ_SIZE = 1 << 16


class Backoff(urllib3.Retry):
    """urllib3's policy of retries, but with random waits, and one before the first retry too.

    A full queue needs time, and clients that come back together fill it again.
    """

    def get_backoff_time(self) -> float:
        """Seconds to wait before the next attempt."""
        longest = self.backoff_factor * 2 ** (len(self.history) - 1)
        return min(self.backoff_max, longest) * random.uniform(0.5, 1.0)


class RestTransport(Transport):
    """One model by TensorFlow Serving's REST API, on a pool of connections that are kept open.

    A prediction changes nothing on the server, so a request whose connection breaks is sent again.

    Args:
        url: Such as `http://127.0.0.1:8501/v1/models/demo`.
        version: The version; None is the highest that the server has.
        limits: How long and how often to try.

    Raises:
        ValueError: The URL is not that of a model.
    """

    def __init__(self, url: str, version: int | None, limits: RequestLimits) -> None:
        parts = urllib.parse.urlsplit(url)
        path = parts.path.rstrip("/")
        is_model = re.fullmatch(r".*/v1/models/[^/:]+", path)
        if not is_model or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(
                f"the URL must be that of a model, such as http://127.0.0.1:8501/v1/models/demo, "
                f"and a version is an argument; received {url!r}."
            )
        self._path = path if version is None else f"{path}/versions/{version}"
        server = f"{parts.scheme}://{parts.netloc}"
        self.where = server + self._path
        self._limits = limits
        self._pool = urllib3.connection_from_url(server, maxsize=limits.connections)
        self._retry = Backoff(
            total=limits.retries,
            allowed_methods=None,
            status_forcelist=_RETRIED,
            backoff_factor=0.1,
            backoff_max=10,
        )

    def predict(
        self, signature: str, inputs: Mapping[str, Sequence[str]], outputs: Sequence[str]
    ) -> dict[str, list]:
        """Runs a signature, see `Transport`."""
        # The column form, since rows of different shapes are an error of the row form.
        request = {"signature_name": signature, "inputs": inputs}
        answer = self._request("POST", f"{self._path}:predict", request)
        found = answer.get("outputs")
        # A single output comes without its name.
        return {outputs[0]: found} if len(outputs) == 1 else found

    def status(self) -> dict[str, Any]:
        """The state of the versions, see `Transport`."""
        return self._request("GET", self._path)

    def metadata(self) -> dict[str, Any]:
        """The signatures, see `Transport`."""
        return self._request("GET", f"{self._path}/metadata")

    def close(self) -> None:
        """Closes all connections."""
        self._pool.close()

    def _request(self, method: str, path: str, content: Any = None) -> dict[str, Any]:
        """Sends a request until it is answered, or its retries or the time are used up."""
        body = None if content is None else json.dumps(content, ensure_ascii=False).encode()
        end = time.monotonic() + self._limits.deadline
        retry = self._retry
        while True:
            response = failure = None
            try:
                response, data = self._attempt(method, path, body, end)
            except exceptions.ReadTimeoutError as error:
                # The server is at work on it, and would be twice.
                raise self._error(error) from None
            except exceptions.HTTPError as error:
                failure = error
            else:
                if not retry.is_retry(method, response.status):
                    return self._content(response, data)
            error = self._refusal(response, data) if failure is None else self._error(failure)
            try:
                retry = retry.increment(method, path, response=response, error=failure)
            except exceptions.MaxRetryError:
                raise error from None
            wait = _retry_after(retry, response) or retry.get_backoff_time()
            if time.monotonic() + wait >= end:
                raise error
            time.sleep(wait)

    def _attempt(self, method, path, body, end):
        """A response and its complete body; raises an `HTTPError` of urllib3."""
        left = max(end - time.monotonic(), 0.001)
        response = self._pool.urlopen(
            method,
            path,
            body=body,
            headers={"Content-Type": "application/json"},
            timeout=urllib3.Timeout(
                connect=min(self._limits.connect_timeout, left),
                read=min(self._limits.read_timeout, left),
            ),
            retries=False,  # nor redirects
            preload_content=False,
        )
        data = bytearray()
        try:
            while chunk := response.read1(_READ_SIZE):
                data += chunk
                if time.monotonic() > end:
                    raise exceptions.ReadTimeoutError(self._pool, path, "the answer is too slow")
        except BaseException:
            response.close()
            raise
        return response, bytes(data)

    def _content(self, response, data) -> dict[str, Any]:
        if response.status != 200:
            raise self._refusal(response, data)
        try:
            content = json.loads(data)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise UnexpectedAnswerError.of(self.where, f"the answer is no JSON object: {data!r}")
        return content

    def _refusal(self, response, data) -> ServingError:
        """The error of an answer whose status is not 200."""
        message = data.decode("utf-8", "replace")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            message = str(json.loads(data)["error"])
        kind = _KINDS.get(response.status, UnexpectedAnswerError)
        return kind.of(self.where, f"status {response.status}: {message or response.reason}")

    def _error(self, error: exceptions.HTTPError) -> ServingError:
        """The error of a request without an answer."""
        if isinstance(error, exceptions.ReadTimeoutError):
            return ServingTimeoutError.of(self.where, "no answer in time")
        if isinstance(error, exceptions.NewConnectionError):
            return UnreachableError.of(self.where, f"nobody listens ({error.__cause__ or error})")
        if isinstance(error, exceptions.ConnectTimeoutError):
            return UnreachableError.of(self.where, "no connection in time")
        return UnreachableError.of(self.where, f"the connection broke ({error})")


def _retry_after(retry: urllib3.Retry, response: urllib3.BaseHTTPResponse | None) -> float | None:
    """Seconds that the server asks to wait, where it does."""
    with contextlib.suppress(exceptions.InvalidHeader):
        return response and retry.get_retry_after(response)
    return None
