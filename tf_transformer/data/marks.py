r"""Pieces of a text that must come out as they went in, and the marks that stand for them.

All of it is operations of TensorFlow on strings, so training and a server find the same pieces.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_transformer.data.parts import CUT, Parts
from tf_transformer.data.pieces import AMBIGUOUS, HTML_TAG, PIECES, SIGNS, VERBATIM
from tf_transformer.data.tag_pairs import openers, pairs_cross
from tf_transformer.data.text import ChangedText
from tf_transformer.errors import ConfigError
from tf_transformer.tokenizers import GraphTokenizer
from tf_transformer.tokenizers.marks import (
    CLOSING_PATTERN,
    OPENING_PATTERN,
    PLAIN_PATTERN,
    RESERVED_PATTERN,
    MarkIds,
    MarkSymbols,
)

_PAIRS_TOGETHER = 1000

# Percentages, whose sign and the letter after it are no placeholder: 100%ig.
_PERCENTAGE = r"((?:^|[^%$\p{N}])\p{N}+(?:[.,]\p{N}+)?)%([^%]|$)"
_PERCENT = "\uf4ff"
_NOT_CLOSING = f"(?:{PLAIN_PATTERN}|{OPENING_PATTERN})"
_TEXT_END = r"\p{N}_\p{Pe}.!?…。！？"
# Text that has a space between itself and the next piece.
_SPACED = rf"[\p{{Latin}}\p{{Greek}}\p{{Cyrillic}}{_TEXT_END}]"
_SIGN = "[$#%@]"  # which may begin a piece
# A text without letters beside its marks, or without any visible character.
_ONLY_MARKS = rf"[^\p{{L}}]*{RESERVED_PATTERN}[^\p{{L}}]*"
NOTHING_TO_TRANSLATE = rf"{_ONLY_MARKS}|[\p{{Z}}\p{{Cc}}\p{{Cf}}]*"


class Marked(NamedTuple):
    """Texts in which marks stand for pieces, and the pieces."""

    text: tf.Tensor  # string (B,)
    pieces: tf.Tensor  # string (B, M), empty for marks that a text lacks


class Marks:
    """The marks of a model, which stand for pieces of its texts.

    Args:
        count: Number of plain marks. Tags that form a pair have half as many pairs of marks.
        pattern: A regular expression in the syntax of RE2 that finds a piece; None for `PIECES`.
        symbols: Subwords of the sources that are no pieces, such as `<2de>`.

    Attributes:
        symbols: The marks as characters, M in all.
        pattern: As given.
        no_pieces: The given symbols that look like pieces.

    Raises:
        ConfigError: The pattern is not valid, or matches an empty text.

    Example:
        >>> marks = tt.Marks(4)
        >>> marks.mark(tf.constant(["Hello, {name}!"])).pieces[0, 0].numpy().decode()
        '{name}'
    """

    def __init__(self, count: int, pattern: str | None = None, symbols: Sequence[str] = ()) -> None:
        begin, end = VERBATIM
        pattern = PIECES if pattern is None else pattern
        self._pattern = rf"({begin}[^{end}]*{end}|{RESERVED_PATTERN}|{pattern})"
        self.pattern, self._counts = pattern, (count, count // 2)
        self.symbols = MarkSymbols.first(count)
        self._all = self.symbols.all
        require_pattern(pattern)
        specs = [tf.TensorSpec([None], tf.string)]
        self._mark_pairs = tf.function(self.mark_pairs, 2 * specs, autograph=False)
        others = [symbol for symbol in symbols if symbol not in self._all]
        with tf.init_scope():
            may_be = self.has_pieces(tf.constant(others, tf.string)).numpy()
        self.no_pieces = [other for other, is_piece in zip(others, may_be, strict=True) if is_piece]

    def __reduce__(self) -> tuple[type, tuple]:
        return Marks, (self._counts[0], self.pattern, self.no_pieces)

    @classmethod
    def of(
        cls, source: GraphTokenizer, target: GraphTokenizer, pattern: str | None = None
    ) -> "Marks | None":
        """Return the marks that both vocabularies have; None if there are none."""
        ids = (getattr(tokenizer, "mark_ids", MarkIds()) for tokenizer in (source, target))
        count = min(len(each.plain) for each in ids)
        return cls(count, pattern, source.user_symbols) if count else None

    def has_pieces(self, text: tf.Tensor) -> tf.Tensor:
        """Return whether texts, string `(B,)`, may have pieces, bool `(B,)`."""
        return tf.strings.regex_full_match(text, f"(?s).*{self._pattern}.*")

    def mark(self, text: tf.Tensor) -> Marked:
        """Put marks in place of the pieces of texts, string `(B,)`.

        Plain marks and pairs are numbered from the beginning of a text. Pieces for which no mark is
        left stay. A space follows each opening mark, so that the word after it has the subwords
        that it has elsewhere; spaces just inside of a pair go to its outside.
        """
        parts = self.split(text)
        pieces = parts.first_pieces()
        columns = self._columns(pieces, ~_is_text(pieces, text))
        return Marked(self._joined(parts, columns), self._table(pieces, columns))

    def mark_pairs(self, source: tf.Tensor, target: tf.Tensor) -> tuple[Marked, Marked]:
        """Put marks in place of the pieces that a source and its target have equally often."""
        sources, targets = self.split(source), self.split(target)
        of_source, of_target = sources.first_pieces(), targets.first_pieces()

        def rank(pieces: tf.Tensor) -> tf.Tensor:
            """Return how often each piece `(B, P)` occurs up to itself."""
            equal = tf.cast(pieces[:, :, None] == pieces[:, None], tf.int32)
            return tf.reduce_sum(tf.linalg.band_part(equal, -1, 0), axis=2)

        is_common = _counts(of_source, of_source) == _counts(of_source, of_target)
        columns = self._columns(of_source, is_common & ~_is_text(of_source, source))
        is_same = of_source[:, :, None] == of_target[:, None]
        is_same &= rank(of_source)[:, :, None] == rank(of_target)[:, None]
        of_partner = tf.reduce_max(tf.where(is_same, columns[:, :, None], -1), axis=1)
        table = self._table(of_source, columns)
        source, target = self._joined(sources, columns), self._joined(targets, of_partner)
        return Marked(source, table), Marked(target, table)

    def mark_lists(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Do in Python what `mark_pairs` does in a graph."""
        sides = [tf.constant(side, tf.string) for side in zip(*pairs, strict=True)]
        has_pieces = self.has_pieces(sides[0]).numpy() & self.has_pieces(sides[1]).numpy()
        pairs = list(pairs)
        if (rows := has_pieces.nonzero()[0]).size:
            found = self._mark_pairs(*(tf.gather(side, rows) for side in sides))
            for row, *pair in zip(rows, *(side.text.numpy() for side in found), strict=True):
                pairs[row] = tuple(text.decode() for text in pair)
        return pairs

    def unmark(self, texts: tf.Tensor, marked: Marked) -> tf.Tensor:
        """Put pieces in place of the marks of n translations of each text, string `(B, n)`.

        A text of pieces without letters beside them is its own translation.
        """
        is_kept = tf.strings.regex_full_match(marked.text, _ONLY_MARKS)
        # What is beside a piece in the translation alone would be read as a part of it.
        joins = tf.strings.regex_full_match(marked.text, f"(?s).*{_SPACED}{_NOT_CLOSING}.*")
        apart = tf.strings.regex_replace(texts, f"({_SPACED})({_NOT_CLOSING})", r"\1 \2")
        texts = tf.where(joins[:, None], texts, apart)
        texts = tf.strings.regex_replace(texts, rf"({OPENING_PATTERN})\s", r"\1")
        texts = tf.where(is_kept[:, None], marked.text[:, None], texts)
        return self.put_back(texts, marked.pieces, marked.text)

    def put_back(
        self, texts: tf.Tensor, pieces: tf.Tensor, source: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Put pieces, string `(B, M)`, in place of the marks in texts or subwords `(B, n)`.

        Given the marked source, string `(B,)`, a space goes between two pieces that it does not
        join. If it joins none to a letter, a space goes between a piece that is no term and a
        letter or digit after it, if both are of ASCII; and if none to a sign, between a sign and a
        piece that would be another piece together.
        """
        rows = tf.repeat(tf.range(tf.shape(texts)[0], dtype=tf.int64), tf.shape(texts)[1])
        parts, pairs = _at_marks(tf.reshape(texts, [-1]))
        equal = parts.flat[:, None] == self._all
        row = tf.gather(rows, parts.rows.value_rowids())
        found = tf.gather_nd(pieces, tf.stack([row, tf.argmax(equal, axis=1)], axis=1))
        is_mark = tf.reduce_any(equal, axis=1)
        found = tf.where(is_mark, found, parts.flat)
        if source is not None:
            found = tf.where(is_mark, self._kept_apart(found, pairs, source, row), found)
        return tf.reshape(parts.joined(found), tf.shape(texts))

    def _kept_apart(
        self, found: tf.Tensor, pairs: tf.Tensor, source: tf.Tensor, row: tf.Tensor
    ) -> tf.Tensor:
        """Return parts `(N,)` with a space where two of them would make another piece."""

        def joins(pattern: str) -> tf.Tensor:
            """Return whether the source of each part has such a place, bool `(N,)`."""
            return tf.gather(tf.strings.regex_full_match(source, f"(?s).*{pattern}.*"), row)

        def matches(text: tf.Tensor, pattern: str) -> tf.Tensor:
            return tf.strings.regex_full_match(text, f"(?s)(?:{pattern})")

        of_source, joined = _at_marks(source)
        joined = of_source.rows.with_flat_values(joined).to_tensor("")
        is_new = (pairs != "") & ~tf.reduce_any(tf.gather(joined, row) == pairs[:, None], axis=1)
        before, after = tf.roll(found, 1, 0), tf.roll(found, -1, 0)
        sign = tf.strings.regex_replace(before, f"(?s)^(?:.*({_SIGN})|.*)$", r"\1")
        is_other = (sign != "") & matches(sign + found, f"(?:{self.pattern}).*")
        is_other &= ~joins(_SIGN + PLAIN_PATTERN)
        is_part = matches(found, self.pattern) & matches(found, r".*\w") & matches(after, r"\w.*")
        is_part &= ~joins(rf"{PLAIN_PATTERN}\w")
        found = tf.where(is_other, " " + found, found)
        return tf.where(is_new | is_part, found + " ", found)

    def differ(self, source: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
        """Return whether texts `(B, n)` of each source have other pieces, or not as often.

        Pairs of tags that cross each other differ, too, unless those of the source do. Text that
        only looks like a tag, such as `<none>`, does not count. A term counts by the pieces in it,
        and as lost if no mark is left for it.
        """
        pieces = self.split(source).first_pieces()
        is_left = _is_term(pieces) & (self._columns(pieces, pieces != "") < 0)
        source = tf.strings.regex_replace(source, SIGNS, "")

        def pieces_of(text: tf.Tensor) -> tf.Tensor:
            pieces = self.split(text).first_pieces()
            return tf.where(_is_text(pieces, text), "", pieces)

        def grouped(of_texts: tf.Tensor) -> tf.Tensor:
            return tf.reshape(of_texts, tf.concat([tf.shape(texts), tf.shape(of_texts)[1:]], 0))

        of_source, of_texts = pieces_of(source), pieces_of(tf.reshape(texts, [-1]))
        cross = ~pairs_cross(of_source)[:, None] & grouped(pairs_cross(of_texts))
        source, of_texts = of_source[:, None], grouped(of_texts)
        lost = (_counts(source, source) != _counts(source, of_texts)) & (source != "")
        invented = (_counts(of_texts, source) == 0) & (of_texts != "")
        differ = tf.reduce_any(lost, axis=-1) | tf.reduce_any(invented, axis=-1)
        return differ | cross | tf.reduce_any(is_left, axis=1, keepdims=True)

    def split(self, text: tf.Tensor) -> Parts:
        """Return texts, string `(B,)`, as text, piece, text, …, text."""
        if self.pattern == PIECES:
            text = tf.strings.regex_replace(text, _PERCENTAGE, rf"\1{_PERCENT}\2")
        cut = tf.strings.regex_replace(text, self._pattern, CUT + rb"\1" + CUT)
        return Parts(tf.strings.split(tf.strings.regex_replace(cut, _PERCENT, "%"), CUT))

    def _columns(self, pieces: tf.Tensor, may_be_marked: tf.Tensor) -> tf.Tensor:
        """Return the index of the mark for each piece `(B, P)`, int32, or -1 if it stays text."""
        num_plain, num_pairs = self._counts
        may_be_marked &= pieces != ""
        if self.no_pieces:
            may_be_marked &= tf.reduce_all(pieces[:, :, None] != self.no_pieces, axis=2)
        opener, size = openers(tf.where(may_be_marked, pieces, "")), tf.shape(pieces)[1]
        is_opener = tf.reduce_any(opener[:, None] == tf.range(size)[:, None], axis=2)
        number = tf.cumsum(tf.cast(is_opener, tf.int32), axis=1, exclusive=True)
        number = tf.where(is_opener, number, tf.gather(number, tf.maximum(opener, 0), batch_dims=1))
        in_pair = (is_opener | (opener >= 0)) & (number < num_pairs)
        pair = num_plain + number + tf.where(is_opener, 0, num_pairs)
        is_plain = may_be_marked & ~in_pair
        plain = tf.cumsum(tf.cast(is_plain, tf.int32), axis=1, exclusive=True)
        # Where there are too many, terms come last.
        others = is_plain & ~_is_term(pieces)
        num_others = tf.reduce_sum(tf.cast(others, tf.int32), axis=1, keepdims=True)
        of_others = tf.cumsum(tf.cast(others, tf.int32), axis=1, exclusive=True)
        first = tf.where(others, of_others, num_others + plain - of_others)
        are_many = tf.reduce_sum(tf.cast(is_plain, tf.int32), axis=1, keepdims=True) > num_plain
        plain = tf.where(are_many, first, plain)
        is_plain &= plain < num_plain
        return tf.where(in_pair, pair, tf.where(is_plain, plain, -1))

    def _joined(self, parts: Parts, columns: tf.Tensor) -> tf.Tensor:
        """Join the parts of texts with marks, given the index of the mark of each piece or -1."""
        rank = tf.minimum(parts.place // 2, tf.shape(columns, tf.int64)[1] - 1)
        column = tf.gather_nd(columns, tf.stack([parts.rows.value_rowids(), rank], axis=1))
        mark = tf.gather(self._all, tf.maximum(column, 0))
        text = parts.joined(tf.where(parts.is_piece & (column >= 0), mark, _left(parts.flat)))
        return tf.where(
            tf.strings.regex_full_match(text, NOTHING_TO_TRANSLATE), text, _spaced(text)
        )

    def _table(self, pieces: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """Return the pieces by the index of their mark, string `(B, M)`."""
        is_here = columns[:, :, None] == tf.range(len(self._all))
        found = tf.gather(_plain(pieces), tf.argmax(is_here, axis=1), batch_dims=1)
        return tf.where(tf.reduce_any(is_here, axis=1), found, "")


def _at_marks(text: tf.Tensor) -> tuple[Parts, tf.Tensor]:
    """Return texts `(B,)` cut at marks, and for each part, if it is a plain mark, the two it joins.

    The marks are as text, string `(N,)`; empty unless a plain or opening mark follows at once.
    """
    cut = tf.strings.regex_replace(text, f"({RESERVED_PATTERN})", CUT + rb"\1" + CUT)
    parts = Parts(tf.strings.split(cut, CUT))
    touches = parts.is_piece & (tf.roll(parts.flat, -1, 0) == "")
    pairs = tf.where(touches, parts.flat + tf.roll(parts.flat, -2, 0), "")
    is_pair = tf.strings.regex_full_match(pairs, f"{PLAIN_PATTERN}{_NOT_CLOSING}")
    return parts, tf.where(is_pair, pairs, "")


def _spaced(text: tf.Tensor) -> tf.Tensor:
    """Return texts with a space after each opening mark, and none before a closing one."""
    text = tf.strings.regex_replace(text, rf"\s+({CLOSING_PATTERN}+)", r"\1 ")
    text = tf.strings.regex_replace(text, rf"\s*({OPENING_PATTERN}+)\s+", r" \1")
    return tf.strings.regex_replace(text, rf"({OPENING_PATTERN})", r"\1 ")


def seem_forced(texts: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
    """Return whether translations `(B, n)` look as if the search put marks at their end.

    A mark stands at the end without a space before it, unlike in the source, string `(B,)`, and
    more marks follow the last word than there. Bool `(B, n)`.
    """

    def num_at_end(text: tf.Tensor) -> tf.Tensor:
        others = rf"(?s)^.*[\p{{L}}\p{{N}}]|[^{RESERVED_PATTERN[1:]}"
        return tf.strings.length(tf.strings.regex_replace(text, others, ""), "UTF8_CHAR")

    joined = rf"[\p{{L}}{_TEXT_END}{PLAIN_PATTERN[1:-1]}]{_NOT_CLOSING}"
    at_end = tf.strings.regex_full_match(texts, rf"(?s).*{joined}[^\p{{L}}\p{{N}}]*")
    in_source = tf.strings.regex_full_match(source, f"(?s).*{joined}.*")
    return at_end & ~in_source[:, None] & (num_at_end(texts) > num_at_end(source)[:, None])


def _is_text(pieces: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
    """Return whether pieces `(B, P)` are text in angle brackets, which is all that texts have."""
    is_alone = tf.strings.regex_full_match(text, rf"[^\p{{L}}]*{AMBIGUOUS}[^\p{{L}}]*")
    is_text = tf.strings.regex_full_match(pieces, AMBIGUOUS) & is_alone[:, None]
    return is_text & ~tf.strings.regex_full_match(pieces, HTML_TAG)


def _counts(pieces: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Return how often each of the pieces `(…, P)` is among others `(…, Q)`, int32 `(…, P)`."""
    equal = pieces[..., :, None] == others[..., None, :]
    return tf.reduce_sum(tf.cast(equal, tf.int32), axis=-1)


def _is_term(pieces: tf.Tensor) -> tf.Tensor:
    """Return whether pieces are terms, rather than elements that a file copies."""
    return tf.strings.regex_full_match(pieces, f"(?s){VERBATIM[0]}[^<].*")


def _plain(text: tf.Tensor) -> tf.Tensor:
    """Return texts without the signs around what is verbatim."""
    begin, end = VERBATIM
    return tf.strings.regex_replace(text, f"^{begin}([^{end}]*){end}$", r"\1")


def _left(text: tf.Tensor) -> tf.Tensor:
    """Return what stays text, in which no character may be read as a mark."""
    return tf.strings.regex_replace(_plain(text), RESERVED_PATTERN, "\ufffd")


def require_pattern(pattern: str) -> None:
    """Raise a `ConfigError` unless a regular expression can find pieces."""
    try:
        with tf.init_scope():
            matches_nothing = tf.strings.regex_full_match([""], pattern).numpy()[0]
    except tf.errors.InvalidArgumentError as error:
        reason = str(error.message).splitlines()[0].partition("error: ")[2]
        raise ConfigError(f"the mark pattern is no regular expression of RE2: {reason}") from None
    if matches_nothing:
        raise ConfigError("the mark pattern matches an empty text. Give one that does not.")


@dataclasses.dataclass(frozen=True)
class MarkedText(ChangedText):
    """The pairs of a text with marks in place of pieces that both sides have equally often."""

    marks: Marks

    def __iter__(self) -> Iterator[tuple[str, str]]:
        pairs = iter(self.text)
        while chunk := list(itertools.islice(pairs, _PAIRS_TOGETHER)):
            yield from self.marks.mark_lists(chunk)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifier of the text, of what pieces are, and of the number of marks."""
        marks = "".join(self.marks.symbols.all), self.marks.pattern, *self.marks.no_pieces
        return self.derived_fingerprint(self.text.fingerprint, *marks)
