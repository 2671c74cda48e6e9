"""The client of a translator that is served, by TensorFlow Serving or `tf-transformer serve`."""

import itertools
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, TypeVar

from tf_transformer.inference.streams import translate_in_order
from tf_transformer.serving.client.errors import (
    BadRequestError,
    NotFoundError,
    ServingError,
    ServingTimeoutError,
    UnexpectedAnswerError,
)
from tf_transformer.serving.client.results import (
    ALIGN,
    SCORE,
    TRANSLATE,
    TRANSLATE_DOCUMENT,
    TRANSLATE_NBEST,
    Alignment,
    DocumentTranslation,
    Hypothesis,
    PairScore,
    Query,
    VersionStatus,
)
from tf_transformer.serving.client.transport import RequestLimits, Transport

_T = TypeVar("_T")


class Client:
    """Translates with a server's model.

    A list of texts becomes several requests, a few of which are under way at once; results come in
    the order of the texts. A request that the server cannot take now (status 429, 502, 503),
    and one whose connection breaks, is sent again after a wait. A client keeps its connections
    open: use it in a `with` statement, or call `close`. Threads may share it.

    Texts are str. A lone surrogate, which has no UTF-8, becomes "?".

    Args:
        url: The model: `http://127.0.0.1:8501/v1/models/demo` (or `https`) for REST, which loads no
            TensorFlow, or `grpc://127.0.0.1:8500/demo` for gRPC.
        version: The version; None is the highest that the server has.
        batch_size: Texts in a request, at most.
        batch_characters: Characters in a request, at most; a longer text goes alone.
        connections: Requests at a time.
        connect_timeout: Seconds for a connection to be made.
        read_timeout: Seconds without a byte of the answer; REST only.
        deadline: Seconds for a request with all of its retries.
        retries: Of a request, after the first attempt; gRPC makes four at most.

    Raises:
        ValueError: The URL is not that of a model, or a number is out of its range.
    """

    def __init__(
        self,
        url: str,
        version: int | None = None,
        *,
        batch_size: int = 32,
        batch_characters: int = 50_000,
        connections: int = 4,
        connect_timeout: float = 5.0,
        read_timeout: float = 60.0,
        deadline: float = 120.0,
        retries: int = 4,
    ) -> None:
        for least, whole_numbers in (
            (0, {"retries": retries, "version": version or 0}),
            (1, {"batch_size": batch_size, "batch_characters": batch_characters}),
            (1, {"connections": connections}),
        ):
            _require_whole_numbers(least, whole_numbers)
        times = {"connect_timeout": connect_timeout, "read_timeout": read_timeout}
        _require_times({**times, "deadline": deadline})
        self._batch_size = batch_size
        self._batch_characters = batch_characters
        self._limits = RequestLimits(connections, connect_timeout, read_timeout, deadline, retries)
        self._transport = _transport(url, version, self._limits)
        self._slots = threading.BoundedSemaphore(connections)
        self._closed = False

    def translate(self, texts: str | Iterable[str]) -> str | list[str]:
        """Translates, each sentence of a text on its own.

        Args:
            texts: A string or a list of strings.

        Returns:
            A str for a str, a list of str for a list.

        Raises:
            TypeError: `texts` holds something else than str.
            ServingError: The server cannot be reached, is too slow or too busy, refuses the texts,
                or gives an unexpected answer: each is a subclass.
        """
        return self._texts(texts, TRANSLATE)

    def stream(self, texts: Iterable[str]) -> Iterator[str]:
        """Translates any number of texts, in their order and in bounded memory.

        Args:
            texts: The texts; some batches of them are read ahead.

        Yields:
            The translation of each.

        Raises:
            ServingError: As `translate`.
        """
        return self._in_order(_checked("texts", texts), TRANSLATE)

    def translate_nbest(
        self, texts: str | Iterable[str]
    ) -> list[Hypothesis] | list[list[Hypothesis]]:
        """The best translations of each text, which is one line.

        Args:
            texts: A string or a list of strings.

        Returns:
            A list of `Hypothesis`, best first, for a str; a list of these for a list.

        Raises:
            ServingError: As `translate`.
        """
        return self._texts(texts, TRANSLATE_NBEST)

    def translate_document(
        self, texts: str | Iterable[str]
    ) -> DocumentTranslation | list[DocumentTranslation]:
        """Translates texts of any length, sentence by sentence, and keeps their layout.

        Args:
            texts: A string or a list of strings.

        Returns:
            A `DocumentTranslation` for a str, a list of these for a list.

        Raises:
            ServingError: As `translate`.
        """
        return self._texts(texts, TRANSLATE_DOCUMENT)

    def score(
        self, sources: str | Iterable[str], targets: str | Iterable[str]
    ) -> PairScore | list[PairScore]:
        """How probable the model finds given translations.

        Args:
            sources: A string or a list of strings.
            targets: A translation of each.

        Returns:
            A `PairScore` for two str, a list of these for two lists.

        Raises:
            ValueError: The lists differ in length.
            ServingError: As `translate`.
        """
        return self._pairs(sources, targets, SCORE)

    def align(
        self, sources: str | Iterable[str], targets: str | Iterable[str]
    ) -> Alignment | list[Alignment]:
        """Which words of the sources belong to which words of given translations.

        Args:
            sources: A string or a list of strings.
            targets: A translation of each.

        Returns:
            An `Alignment` for two str, a list of these for two lists.

        Raises:
            ValueError, ServingError: As `score`.
        """
        return self._pairs(sources, targets, ALIGN)

    def status(self) -> list[VersionStatus]:
        """The state of the versions that the server has or had, or of the one chosen.

        Raises:
            ServingError: As `translate`.
        """
        answer = self._ask(self._transport.status)
        try:
            return [VersionStatus.of(each) for each in answer["model_version_status"]]
        except (KeyError, TypeError, ValueError):
            raise self._unexpected("status", answer) from None

    def metadata(self) -> dict[str, Any]:
        """The model's version and signatures, as TensorFlow Serving's REST API has them.

        Raises:
            ServingError: As `translate`.
        """
        return self._ask(self._transport.metadata)

    def close(self) -> None:
        """Closes all connections; to be called when no other call is under way."""
        self._closed = True
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # From calls to requests

    def _texts(self, texts, query):
        if isinstance(texts, str):
            return self._batch([_encodable(texts)], query)[0]
        return list(self._in_order(_checked("texts", texts), query))

    def _pairs(self, sources, targets, query):
        if isinstance(sources, str) and isinstance(targets, str):
            return self._batch([(_encodable(sources), _encodable(targets))], query)[0]
        sources, targets = _checked("sources", sources), _checked("targets", targets)
        return list(self._in_order(_paired(sources, targets), query))

    def _in_order(self, items: Iterator[Any], query: Query) -> Iterator[Any]:
        def in_requests(batch):
            return [result for part in self._parts(batch) for result in self._batch(part, query)]

        return translate_in_order(items, in_requests, self._batch_size, self._limits.connections)

    def _parts(self, batch: list) -> Iterator[list]:
        """Divides a batch where it has too many characters."""
        part, size = [], 0
        for item in batch:
            length = len(item) if isinstance(item, str) else sum(map(len, item))
            if part and size + length > self._batch_characters:
                yield part
                part, size = [], 0
            part.append(item)
            size += length
        yield part

    def _batch(self, items: list[str] | list[tuple[str, str]], query: Query) -> list:
        """The result of each text or pair, from one request."""
        rows = [(item,) if isinstance(item, str) else item for item in items]
        inputs = dict(zip(query.inputs, map(list, zip(*rows, strict=True)), strict=True))
        try:
            found = self._ask(
                lambda: self._transport.predict(query.signature, inputs, query.outputs)
            )
        except BadRequestError:
            if self._lacks(query.signature):
                raise NotFoundError.of(
                    self._transport.where,
                    f"the model has no signature {query.signature}; export it again with this "
                    f"version of tf_transformer",
                ) from None
            raise
        try:
            columns = [found[name] for name in query.outputs]
            if not all(isinstance(column, list) for column in columns):
                raise TypeError("outputs must be lists")
            return [query.result(*row) for _, *row in zip(items, *columns, strict=True)]
        except (KeyError, TypeError, ValueError):
            raise self._unexpected(f"{query.signature} of {len(items)} texts", found) from None

    def _lacks(self, signature: str) -> bool:
        """Whether the model is known to have no such signature; servers differ in the status."""
        try:
            return signature not in self.metadata()["metadata"]["signature_def"]["signature_def"]
        except (ServingError, KeyError, TypeError):
            return False

    def _ask(self, request: Callable[[], _T]) -> _T:
        if self._closed:
            raise RuntimeError("the client is closed; make another one.")
        if not self._slots.acquire(timeout=self._limits.deadline):
            raise ServingTimeoutError.of(self._transport.where, "all connections are in use")
        try:
            return request()
        finally:
            self._slots.release()

    def _unexpected(self, what: str, answer: Any) -> UnexpectedAnswerError:
        return UnexpectedAnswerError.of(
            self._transport.where, f"the answer to {what} is not as expected: {answer!r}"
        )


def _transport(url: str, version: int | None, limits: RequestLimits) -> Transport:
    """The way to the server that the URL's scheme names; only gRPC's loads TensorFlow."""
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme in ("http", "https"):
        from tf_transformer.serving.client.rest import RestTransport

        return RestTransport(url, version, limits)
    if scheme == "grpc":
        from tf_transformer.serving.client.grpc import GrpcTransport

        return GrpcTransport(url, version, limits)
    raise ValueError(
        f"the URL must begin with http://, https:// or grpc://, such as "
        f"http://127.0.0.1:8501/v1/models/demo; received {url!r}."
    )


def _require_whole_numbers(least: int, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or value < least:
            raise ValueError(
                f"{name} must be a whole number and at least {least}; received {name}={value!r}."
            )


def _require_times(values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if not 0 < value <= threading.TIMEOUT_MAX:
            raise ValueError(
                f"{name} must be a number of seconds greater than 0; received {name}={value!r}."
            )


def _checked(name: str, texts: Iterable[str]) -> Iterator[str]:
    """The texts one after another; raises where it is not clear what they are, or their order."""
    if isinstance(texts, str | bytes | Mapping | Set) or not isinstance(texts, Iterable):
        raise TypeError(f"{name} must be a list of str; received {type(texts).__name__}.")

    def each():
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    f"{name} must be a str or a list of str; item {index} is {type(text).__name__}."
                )
            yield _encodable(text)

    return each()


def _paired(sources: Iterator[str], targets: Iterator[str]) -> Iterator[tuple[str, str]]:
    for index, pair in enumerate(itertools.zip_longest(sources, targets)):
        if None in pair:
            raise ValueError(
                f"sources and targets must have as many texts; only one of them has an item "
                f"{index}."
            )
        yield pair


def _encodable(text: str) -> str:
    """The text with "?" for each lone surrogate, as `Translator` has it."""
    return text.encode("utf-8", "replace").decode("utf-8")
