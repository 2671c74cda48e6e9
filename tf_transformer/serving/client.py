"""The client of a translator that TensorFlow Serving or `tf-transformer serve` serves."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.inference.results import MISSING_SCORE, AlignedPair, TargetProbability
from tf_transformer.inference.streams import translate_in_order
from tf_transformer.serving.transports import GrpcServer, RestServer, UnexpectedAnswerError

_REQUEST_CHARACTERS = 50_000

Texts = str | Iterable[str]  # a text or several, for one result or a list


class Hypothesis(NamedTuple):
    """One of the best translations of a text.

    Attributes:
        text: The translation.
        score: Its beam score.
        length: The number of tokens.
        truncated: Whether the text, or any of its hypotheses, met the length limit.
    """

    text: str
    score: float
    length: int
    truncated: bool


class DocumentTranslation(NamedTuple):
    """A translated document.

    Attributes:
        translation: The translation, with the white space and line breaks of the source.
        sentences: The sentences that were found.
        sentence_translations: The translation of each.
        truncated: Whether a sentence met the length limit.
    """

    translation: str
    sentences: list[str]
    sentence_translations: list[str]
    truncated: bool


class Client:
    """Translates with a server's model.

    A list of texts becomes several requests, a few of which are under way at once; results come in
    the order of the texts. A request that the server cannot take now (429, 502, 503), or whose
    connection breaks, is sent again after a wait. Threads may share a client. It keeps its
    connections open: use it in a `with` statement, or call `close`.

    Every method raises a `ServingError` where the server does not do what it is asked. A lone
    surrogate in a text, which has no UTF-8, becomes "?".

    Args:
        url: The model: `http://127.0.0.1:8501/v1/models/demo` (or `https`) for REST, which loads no
            TensorFlow, or `grpc://127.0.0.1:8500/demo` for gRPC.
        version: The version; None is the highest that the server has.
        batch_size: The most texts in a request.
        connections: The most requests at a time.
        timeout: Seconds to wait for an answer; by gRPC with all retries.
        retries: How often a request is sent again; by gRPC four times at most.

    Raises:
        ValueError: The URL is not that of a model.
    """

    def __init__(
        self,
        url: str,
        version: int | None = None,
        *,
        batch_size: int = 32,
        connections: int = 4,
        timeout: float = 60.0,
        retries: int = 4,
    ) -> None:
        self._batch_size = batch_size
        self._connections = connections
        if url.startswith("grpc:"):
            self._server: RestServer | GrpcServer = GrpcServer(url, version, timeout, retries)
        else:
            self._server = RestServer(url, version, connections, timeout, retries)

    def translate(self, texts: Texts) -> str | list[str]:
        """Translates a text or a list of texts, sentence by sentence."""
        return self._results(_TRANSLATE, texts)

    def stream(self, texts: Iterable[str]) -> Iterator[str]:
        """Translates any number of texts in their order, in bounded memory."""
        return self._in_order(_TRANSLATE, texts)

    def translate_nbest(self, texts: Texts) -> list[Hypothesis] | list[list[Hypothesis]]:
        """Returns the best translations of a text, which is one line, or of each text of a list."""
        return self._results(_TRANSLATE_NBEST, texts)

    def translate_document(self, texts: Texts) -> DocumentTranslation | list[DocumentTranslation]:
        """Translates texts of any length sentence by sentence, and keeps their layout."""
        return self._results(_TRANSLATE_DOCUMENT, texts)

    def score(self, sources: Texts, targets: Texts) -> TargetProbability | list[TargetProbability]:
        """Returns the probability of a given translation, or of each in a list."""
        return self._results(_SCORE, sources, targets)

    def align(self, sources: Texts, targets: Texts) -> AlignedPair | list[AlignedPair]:
        """Returns which words of a source belong to which words of a given translation."""
        return self._results(_ALIGN, sources, targets)

    def status(self) -> list[dict[str, Any]]:
        """Returns the state of the versions, as TensorFlow Serving's REST API has it."""
        return self._server.status()["model_version_status"]

    def metadata(self) -> dict[str, Any]:
        """Returns the version and its signatures, as TensorFlow Serving's REST API has them."""
        return self._server.metadata()

    def close(self) -> None:
        """Closes all connections."""
        self._server.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _results(self, query: "_Query", *columns: Texts) -> Any:
        if all(isinstance(column, str) for column in columns):
            return self._request(query, [tuple(map(_valid, columns))])[0]
        return list(self._in_order(query, *columns))

    def _in_order(self, query: "_Query", *columns: Iterable[str]) -> Iterator[Any]:
        if any(isinstance(column, str) for column in columns):
            raise TypeError("give lists of str; a str would be read letter by letter.")
        rows = (tuple(map(_valid, row)) for row in zip(*columns, strict=True))

        def translate(batch: list[tuple[str, ...]]) -> list[Any]:
            return [result for part in _parts(batch) for result in self._request(query, part)]

        return translate_in_order(rows, translate, self._batch_size, self._connections, _length)

    def _request(self, query: "_Query", rows: Sequence[tuple[str, ...]]) -> list[Any]:
        """Returns the result of each row, from one request."""
        inputs = dict(zip(query.inputs, map(list, zip(*rows, strict=True)), strict=True))
        outputs = self._server.predict(query.signature, inputs, query.outputs)
        try:
            columns = [outputs[name] for name in query.outputs]
            return [query.result(*found) for _, *found in zip(rows, *columns, strict=True)]
        except (KeyError, TypeError, ValueError):
            what = f"the answer to {query.signature} is not as expected: {outputs!r}"
            raise UnexpectedAnswerError(self._server.where, what) from None


class _Query(NamedTuple):
    """What to ask of a signature; `result` takes a row of each output."""

    signature: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    result: Callable[..., Any]


def _hypotheses(
    texts: list[str], scores: list[float], lengths: list[int], truncated: bool
) -> list[Hypothesis]:
    found = zip(texts, scores, lengths, strict=True)
    return [Hypothesis(*each, truncated) for each in found if each[1] > MISSING_SCORE]


def _document(
    translation: str, sentences: list[str], translations: list[str], truncated: bool
) -> DocumentTranslation:
    # A batch pads its documents to the same number of sentences.
    found = [pair for pair in zip(sentences, translations, strict=True) if pair[0]]
    return DocumentTranslation(translation, [s for s, _ in found], [t for _, t in found], truncated)


def _aligned(source, target, attention, source_length, target_length, truncated) -> AlignedPair:
    # Without any target there is no row that tells the number of columns.
    weights = np.array(attention, np.float32).reshape(len(target), len(source))
    return AlignedPair(
        source[:source_length],
        target[:target_length],
        weights[:target_length, :source_length],
        truncated,
    )


_TRANSLATE = _Query("serving_default", ("text",), ("translation",), str)
_TRANSLATE_NBEST = _Query(
    "translate_nbest", ("text",), ("translations", "scores", "lengths", "truncated"), _hypotheses
)
_TRANSLATE_DOCUMENT = _Query(
    "translate_document",
    ("text",),
    ("translation", "sentences", "sentence_translations", "truncated"),
    _document,
)
_SCORE = _Query(
    "score", ("source", "target"), ("log_prob", "num_tokens", "truncated"), TargetProbability
)
_ALIGN = _Query(
    "align",
    ("source", "target"),
    (
        "source_subwords",
        "target_subwords",
        "attention",
        "source_lengths",
        "target_lengths",
        "truncated",
    ),
    _aligned,
)


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _length(row: Sequence[str]) -> int:
    return sum(map(len, row))


def _parts(rows: Iterable[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    """Divides a batch that has too many characters for one request."""
    part: list[tuple[str, ...]] = []
    for row in rows:
        if part and sum(map(_length, part)) + _length(row) > _REQUEST_CHARACTERS:
            yield part
            part = []
        part.append(row)
    yield part
