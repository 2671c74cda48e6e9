"""A client for translators that are served by TensorFlow Serving or `tf-transformer serve`."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

from tf_transformer.data.glossary import Glossary
from tf_transformer.inference.results import MISSING_SCORE, AlignedPair, TargetProbability, rows_of
from tf_transformer.inference.streams import translate_in_order
from tf_transformer.serving.connection import Connection, UnexpectedAnswerError

_REQUEST_CHARACTERS = 50_000  # half of what the local server takes by default

Texts = str | Iterable[str]  # one text for one result, or several for a list of results


class Hypothesis(NamedTuple):
    """One of the best translations of a text, with its beam score and its number of tokens.

    `truncated` says whether part of the text was dropped or a hypothesis reached the length limit.
    For `flags` and `expected_chrf` see `Translation`.

    Example:
        >>> from tf_transformer.serving import Hypothesis
        >>> Hypothesis("Good morning!", score=-0.25, length=4, truncated=False).text
        'Good morning!'
    """

    text: str
    score: float
    length: int
    truncated: bool
    flags: tuple[str, ...] = ()
    expected_chrf: float | None = None


class DocumentTranslation(NamedTuple):
    """A translated document, with the white space and the line breaks of the source.

    `truncated` says whether the translation of any sentence reached the length limit.

    Example:
        >>> from tf_transformer.serving import DocumentTranslation
        >>> sources, translations = ["Ja.", "Nein."], ["Yes.", "No."]
        >>> DocumentTranslation("Yes.  No.", sources, translations, False).translation
        'Yes.  No.'
    """

    translation: str
    sentences: list[str]
    sentence_translations: list[str]
    truncated: bool


class Client:
    """A client that translates with the model of a server.

    A list of texts is sent in several requests, up to `connections` of them at a time; results come
    in the order of the texts. A request that the server cannot take now (429, 502, 503), or whose
    connection breaks, is sent again after a wait. Threads may share a client. A client keeps its
    connections open: use it in a `with` statement, or call `close`.

    Every method raises a `ServingError` if its request fails. A lone surrogate in a text is
    replaced by "?", because it cannot be written in UTF-8. The client does not load TensorFlow.

    ```python
    with Client("http://127.0.0.1:8501/v1/models/demo") as client:
        print(client.translate(["Guten Morgen!", "Wo ist der Bahnhof?"]))
        print(client.score("Guten Morgen!", "Good morning!").log_prob)
    ```

    Args:
        url: URL of the model, such as `http://127.0.0.1:8501/v1/models/demo` (or `https`).
        version: Version of the model; None for the highest on the server.
        batch_size: Maximum number of texts in a request.
        connections: Maximum number of requests at a time.
        timeout: Seconds to wait for an answer.
        retries: Number of times that a request is sent again.

    Raises:
        ValueError: If `url` is not the URL of a model, or a number is out of range.
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
        self._server = Connection(url, version, connections, timeout, retries)

    def translate(self, texts: Texts, terms: Mapping[str, str] | None = None) -> str | list[str]:
        """Translate a text or a list of texts, sentence by sentence.

        Every translation follows the `terms`, a glossary, if the model has marks.
        """
        if not terms:
            return self._results("serving_default", _translation, texts)
        if isinstance(texts, str):
            return self.translate([texts], terms)[0]
        texts = list(texts)
        columns = texts, list(map(Glossary(terms).terms_in, texts))
        return self._results("translate_with_terms", _translation, *columns)

    def stream(self, texts: Iterable[str]) -> Iterator[str]:
        """Translate any number of texts in their order, in bounded memory."""
        return self._in_order("serving_default", _translation, texts)

    def translate_nbest(self, texts: Texts) -> list[Hypothesis] | list[list[Hypothesis]]:
        """Return the best translations of a text of one line, or of each such text in a list."""
        return self._results("translate_nbest", _hypotheses, texts)

    def translate_document(self, texts: Texts) -> DocumentTranslation | list[DocumentTranslation]:
        """Translate texts of any length sentence by sentence, and keep their layout."""
        return self._results("translate_document", _document, texts)

    def score(self, sources: Texts, targets: Texts) -> TargetProbability | list[TargetProbability]:
        """Return the probability of a given translation, or of each in a list."""
        return self._results("score", lambda row: TargetProbability(**row), sources, targets)

    def align(self, sources: Texts, targets: Texts) -> AlignedPair | list[AlignedPair]:
        """Return the attention of a given translation to its source, or of each in a list."""
        return self._results("align", AlignedPair.of, sources, targets)

    def status(self) -> list[dict[str, Any]]:
        """Return the state of the versions, in the form of TensorFlow Serving's REST API."""
        found = self._server.request("GET").get("model_version_status")
        if not isinstance(found, list):
            raise UnexpectedAnswerError(self._server.where, "the answer has no state of versions")
        return found

    def metadata(self) -> dict[str, Any]:
        """Return the version and its signatures, in the form of TensorFlow Serving's REST API."""
        return self._server.request("GET", "/metadata")

    def close(self) -> None:
        """Close all connections."""
        self._server.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _results(self, signature: str, result: "_Result", *columns: Texts) -> Any:
        if all(isinstance(column, str) for column in columns):
            return self._request(signature, result, [tuple(map(_valid, columns))])[0]
        return list(self._in_order(signature, result, *columns))

    def _in_order(
        self, signature: str, result: "_Result", *columns: Iterable[str]
    ) -> Iterator[Any]:
        if any(isinstance(column, str) for column in columns):
            raise TypeError("give lists of str; a str would be read letter by letter.")
        if len({len(column) for column in columns if isinstance(column, Sized)}) > 1:
            raise ValueError("give as many targets as sources.")
        rows = (tuple(map(_valid, row)) for row in zip(*columns, strict=True))
        request = functools.partial(self._request, signature, result)
        return translate_in_order(rows, request, self._batch_size, self._connections)

    def _request(self, signature: str, result: "_Result", rows: list[tuple[str, ...]]) -> list[Any]:
        """Return the result of each row; rows with many characters are sent in several requests."""
        if len(rows) > 1 and sum(len(text) for row in rows for text in row) > _REQUEST_CHARACTERS:
            halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            return [found for half in halves for found in self._request(signature, result, half)]
        names = ("text",) if len(rows[0]) == 1 else ("source", "target")
        names = ("text", "terms") if signature == "translate_with_terms" else names
        inputs = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        # Use the column form, because the row form repeats the names of several outputs.
        content = {"signature_name": signature, "inputs": inputs}
        outputs = self._server.request("POST", ":predict", content).get("outputs")
        # A single output, which is the translation, comes without its name.
        outputs = outputs if isinstance(outputs, dict) else {"translation": outputs}
        try:
            return [result(row) for _, row in zip(rows, rows_of(outputs), strict=True)]
        except (AttributeError, KeyError, TypeError, ValueError):
            what = f"the answer to {signature} is not as expected: {outputs!r}"
            raise UnexpectedAnswerError(self._server.where, what) from None


# A function from the outputs of a signature for one text, by name, to the result for the text.
_Result = Callable[[dict[str, Any]], Any]


def _translation(row: dict[str, Any]) -> str:
    if not isinstance(text := row["translation"], str):
        raise TypeError(f"{text!r} is no text")
    return text


def _hypotheses(row: dict[str, Any]) -> list[Hypothesis]:
    count = len(row["translations"])  # an older export has no flags
    flags = [tuple(filter(None, f.split(","))) for f in row.get("flags", [""] * count)]
    expected = row.get("expected_chrf", [None] * count)
    columns = row["translations"], row["scores"], row["lengths"], flags, expected
    found = ((*each[:3], row["truncated"], *each[3:]) for each in zip(*columns, strict=True))
    return [Hypothesis(*each) for each in found if each[1] > MISSING_SCORE]


def _document(row: dict[str, Any]) -> DocumentTranslation:
    # A batch pads its documents to the same number of sentences.
    both = zip(row["sentences"], row["sentence_translations"], strict=True)
    pairs = [pair for pair in both if pair[0]]
    sides = [source for source, _ in pairs], [target for _, target in pairs]
    return DocumentTranslation(row["translation"], *sides, row["truncated"])


def _valid(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"texts must be str; received a value of type {type(text).__name__}.")
    return text.encode("utf-8", "replace").decode()
