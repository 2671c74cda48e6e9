"""The client's connection to TensorFlow Serving's REST API, and the errors of its requests."""

import json
import re
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

_CONNECT_SECONDS = 5.0  # enough for a lost packet, which is sent again after 1 and 3 seconds
_LONGEST_REASON = 400  # characters of a message


class ServingError(Exception):
    """A request to a server failed. The message is one line, which names the server."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {' '.join(reason.split())[:_LONGEST_REASON]}")


class UnreachableError(ServingError, ConnectionError):
    """No server listens at the URL, or the connection breaks."""


class ServingTimeoutError(ServingError, TimeoutError):
    """No answer came in time."""


class OverloadedError(ServingError):
    """The server had no capacity for the request, even after all retries."""


class BadRequestError(ServingError, ValueError):
    """The server refused the request; its reason is in the message."""


class NotFoundError(ServingError, LookupError):
    """The server has no such model or version."""


class UnexpectedAnswerError(ServingError):
    """The server failed, or its answer is not one of TensorFlow Serving's."""


# Classes of errors by the status of an answer; a proxy says 502 if its server does not answer.
_ERRORS: dict[int, type[ServingError]] = {
    **dict.fromkeys((400, 403, 413), BadRequestError), 404: NotFoundError, 502: UnreachableError,
    **dict.fromkeys((429, 503), OverloadedError), **dict.fromkeys((408, 504), ServingTimeoutError),
}  # fmt: skip


class _Retry(urllib3.Retry):
    """urllib3's retries, except after a read timeout: the server is still working on the answer."""

    def increment(
        self, method: str | None = None, url: str | None = None, response: Any = None,
        error: Exception | None = None, *others: Any, **named: Any,
    ) -> urllib3.Retry:  # fmt: skip
        if isinstance(error, ReadTimeoutError):
            raise error
        return super().increment(method, url, response, error, *others, **named)


class Connection:
    """A pool of connections to a model; the arguments are those of `Client`."""

    def __init__(
        self, url: str, version: int | None, connections: int, timeout: float, retries: int
    ) -> None:
        match = re.fullmatch(r"(https?://[^/?#@]+)((?:/[^?#]*)?/v1/models/[^/:?#]+)/?", url)
        if not match:
            raise ValueError(
                "the URL must be that of a model, without a version or a password, such as "
                "http://127.0.0.1:8501/v1/models/demo."
            )
        if connections < 1 or retries < 0:
            what = f"received {connections} and {retries}"
            raise ValueError(f"connections must be at least 1, and retries at least 0; {what}.")
        server, path = match.groups()
        self._path = path if version is None else f"{path}/versions/{version}"
        self.where = server + self._path
        self._pool = urllib3.connection_from_url(
            server,
            maxsize=connections,
            block=True,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=timeout),
            # A prediction changes nothing on the server, so it can be sent twice.
            retries=_Retry(
                retries,
                connect=min(retries, 1),  # where nothing listens, waiting does not help
                redirect=False,
                allowed_methods=None,
                status_forcelist={429, 502, 503},
                raise_on_status=False,
                # About 0, 1, 2 and 4 seconds, so that clients do not come back at the same time.
                respect_retry_after_header=False,
                backoff_factor=0.5,
                backoff_jitter=0.5,
            ),
        )

    def close(self) -> None:
        self._pool.close()

    def request(self, method: str, end: str = "", content: Any = None) -> dict[str, Any]:
        """Return the answer to a request for the model's path with this end."""
        try:
            answer = self._pool.request(method, self._path + end, json=content, redirect=False)
        except ReadTimeoutError:
            raise ServingTimeoutError(self.where, "no answer in time") from None
        except HTTPError as error:
            reason = f"no connection ({getattr(error, 'reason', error)}); is the server running?"
            raise UnreachableError(self.where, reason) from None
        try:
            found = json.loads(answer.data)
        except ValueError:
            found = None
        if answer.status == 200 and isinstance(found, dict):
            return found
        message = found["error"] if isinstance(found, dict) and "error" in found else answer.data
        kind = _ERRORS.get(answer.status, UnexpectedAnswerError)
        raise kind(self.where, f"status {answer.status}: {message}")
