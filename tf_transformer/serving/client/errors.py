"""Errors of the client: one line that says which server, what happened and what to do."""

_LONGEST_REASON = 400


class ServingError(Exception):
    """A server did not do what it was asked."""

    advice = ""

    @classmethod
    def of(cls, where: str, what: str) -> "ServingError":
        """Returns the error.

        Args:
            where: The server's URL.
            what: What happened, such as the server's own message; it becomes one line.
        """
        line = " ".join(what.split()).rstrip(".")
        if len(line) > _LONGEST_REASON:
            line = line[:_LONGEST_REASON] + " …"
        return cls(f"{where}: {line}{cls.advice}.")


class UnreachableError(ServingError, ConnectionError):
    """No server listens at the URL, or the connection to it breaks."""

    advice = "; start a server with tf-transformer serve SAVED_MODEL, or correct the URL"


class ServingTimeoutError(ServingError, TimeoutError):
    """No answer came in time."""

    advice = "; ask for less at once, or give a greater deadline"


class OverloadedError(ServingError):
    """The server has no capacity for the request, after all retries."""

    advice = "; ask again later, or with fewer connections"


class BadRequestError(ServingError, ValueError):
    """The server refused the request."""


class NotFoundError(ServingError, LookupError):
    """The server has no such model, version or signature."""


class UnexpectedAnswerError(ServingError):
    """The server failed, or its answer is none of TensorFlow Serving's."""
