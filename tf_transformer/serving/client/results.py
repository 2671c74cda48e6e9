"""What the client asks of each signature of an export, and the results that it makes of it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

_MISSING_SCORE = -1e9  # of a hypothesis that does not exist


class Hypothesis(NamedTuple):
    """One of the best translations of a text.

    Attributes:
        text: The translation.
        score: Its beam score.
        length: Tokens.
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


class PairScore(NamedTuple):
    """What the model thinks of a given translation.

    Attributes:
        log_prob: Sum of the log-probabilities of its tokens, in the tokenizer's own segmentation,
            and its end.
        num_tokens: Their number.
        truncated: Whether one of the texts was too long and its end dropped.
    """

    log_prob: float
    num_tokens: int
    truncated: bool


class Alignment(NamedTuple):
    """Which subwords of a source each subword of its translation attends to.

    Attributes:
        source_subwords: S strings; "▁" begins a word, and the last is `</s>`.
        target_subwords: T strings.
        attention: float32 of shape (T, S); the sum of each row is 1.
        truncated: Whether one of the texts was too long and its end dropped.
    """

    source_subwords: list[str]
    target_subwords: list[str]
    attention: np.ndarray
    truncated: bool


class VersionStatus(NamedTuple):
    """The state of one version on the server.

    Attributes:
        version: Its number.
        state: `AVAILABLE` where it answers, else as TensorFlow Serving names it.
        error: Why it could not be loaded, or an empty string.
    """

    version: int
    state: str
    error: str

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "VersionStatus":
        """Reads an item of `model_version_status` of TensorFlow Serving's REST API."""
        error = content.get("status", {}).get("error_message", "")
        return cls(int(content["version"]), content["state"], error)


class Query(NamedTuple):
    """What to ask of a signature.

    Attributes:
        signature: Its name.
        inputs: The names of its inputs.
        outputs: The names of its outputs, in the order of the arguments of `result`.
        result: Returns the result of one text or pair, from its row of each output.
    """

    signature: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    result: Callable[..., Any]


def _translation(translation: str) -> str:
    if not isinstance(translation, str):
        raise TypeError("a translation must be a str")
    return translation


def _hypotheses(
    texts: list[str], scores: list[float], lengths: list[int], truncated: bool
) -> list[Hypothesis]:
    return [
        Hypothesis(text, score, length, truncated)
        for text, score, length in zip(texts, scores, lengths, strict=True)
        if score > _MISSING_SCORE
    ]


def _document(
    translation: str, sentences: list[str], translations: list[str], truncated: bool
) -> DocumentTranslation:
    # Documents of a batch are padded to the same number of sentences.
    found = [pair for pair in zip(sentences, translations, strict=True) if pair[0]]
    return DocumentTranslation(translation, [s for s, _ in found], [t for _, t in found], truncated)


def _alignment(
    source: list[str],
    target: list[str],
    attention: list[list[float]],
    source_length: int,
    target_length: int,
    truncated: bool,
) -> Alignment:
    # Without any target there is no row that tells the number of columns.
    weights = np.array(attention, np.float32).reshape(len(target), len(source))
    return Alignment(
        source[:source_length],
        target[:target_length],
        weights[:target_length, :source_length],
        truncated,
    )


TRANSLATE = Query("serving_default", ("text",), ("translation",), _translation)
TRANSLATE_NBEST = Query(
    "translate_nbest",
    ("text",),
    ("translations", "scores", "lengths", "truncated"),
    _hypotheses,
)
TRANSLATE_DOCUMENT = Query(
    "translate_document",
    ("text",),
    ("translation", "sentences", "sentence_translations", "truncated"),
    _document,
)
SCORE = Query("score", ("source", "target"), ("log_prob", "num_tokens", "truncated"), PairScore)
ALIGN = Query(
    "align",
    ("source", "target"),
    (
        "source_subwords", "target_subwords", "attention", "source_lengths", "target_lengths",
        "truncated",
    ),
    _alignment,
)  # fmt: skip
