"""A text file, the places in it that are to be translated, and how translations get there."""

import bisect
import codecs
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tf_transformer.data.lines import DataError, FilePath

_BOMS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_BOMS[codecs.BOM_UTF8] = "utf-8"
Parts = list[str | slice]  # new text, and slices of the file that are copied


class Edit(NamedTuple):
    """A range of characters in a file, and what a translation puts there."""

    start: int
    end: int
    write: Callable[[str], Parts | None]  # None leaves the range as it is


class Unit(NamedTuple):
    """A text in a file.

    Attributes:
        source: The text, decoded, with inline elements as tags as they stand in the file.
        place: Where the unit is, for messages.
        edits: The changes that a translation makes; empty if the unit is not to be translated.
        pair: Source and target without tags, if a person vouches for the translation.
    """

    source: str
    place: str
    edits: tuple[Edit, ...] = ()
    pair: tuple[str, str] | None = None


class TextFile:
    """The text of a file with all its characters, and the codec that gives the same bytes again.

    Args:
        path: The file.
        charset: Expression for the name of the charset in the file, which is otherwise UTF-8.
    """

    def __init__(self, path: FilePath, charset: bytes) -> None:
        self.path = path
        self.is_markup = Path(path).suffix.lower() not in (".po", ".pot", ".srt")
        try:
            content = Path(path).read_bytes()
            found = re.search(charset, content)
            declared = found[1].decode() if found else "utf-8"
            self.codec = next((_BOMS[bom] for bom in _BOMS if content.startswith(bom)), declared)
            self.text = content.decode(self.codec)
            # No text has a NUL. A charset that writes the same text in two ways could change bytes.
            if "\0" in self.text or self.text.encode(self.codec) != content:
                raise LookupError
        except OSError as error:
            raise DataError(f"{path}: {error.strerror.lower()}; check the file") from error
        except (LookupError, UnicodeError) as error:
            line = content.count(b"\n", 0, getattr(error, "start", 0)) + 1
            raise DataError(
                f"{path}, line {line}: is not text in {self.codec}; name its charset where the "
                f"format has a place for it, or convert the file to UTF-8 (iconv)"
            ) from None
        self._line_ends = [match.start() for match in re.finditer("\n", self.text)]
        self.newline = "\r\n" if "\r\n" in self.text else "\n"

    def place(self, offset: int) -> str:
        """Return the number of the line of a character, in words."""
        return f"line {bisect.bisect_left(self._line_ends, offset) + 1}"

    def error(self, offset: int, message: str) -> DataError:
        """Return an error at a character."""
        return DataError(f"{self.path}, {self.place(offset)}: {message}")

    def records(
        self, record: re.Pattern[str], other: re.Pattern[str], advice: str
    ) -> Iterator[tuple[int, re.Match[str]]]:
        """Yield where the text before each record starts, which must not match `other`, and it."""
        end = int(self.text.startswith("\ufeff"))
        for match in (*record.finditer(self.text), None):
            wrong = other.search(self.text, end, match.start() if match else len(self.text))
            if wrong:
                raise self.error(wrong.start(1), f"did not expect {wrong[1][:60]!r}; {advice}")
            if match:
                yield end, match
                end = match.end()


@dataclasses.dataclass(frozen=True)
class Document:
    """A file and its units."""

    file: TextFile
    units: list[Unit]

    @property
    def to_translate(self) -> list[str]:
        """The sources of the units that need a translation, see `Markup`."""
        return [unit.source for unit in self.units if unit.edits]

    def fitting(self, translations: Sequence[str]) -> list[bool]:
        """Return which translations of `to_translate` are not blank, and have the source's tags."""
        written = self._written(translations)
        return [all(parts is not None for _, parts in unit) for unit in written]

    def _written(self, translations: Sequence[str]) -> Iterator[list[tuple[Edit, Parts | None]]]:
        """Yield the edits of each unit with what its translation puts there; None is no change."""
        units = (unit for unit in self.units if unit.edits)
        for unit, text in zip(units, map(str.strip, translations), strict=True):
            yield [(edit, edit.write(text) if text else None) for edit in unit.edits]

    def filled(self, translations: Sequence[str]) -> bytes:
        """Return the bytes of the file with translations of `to_translate`.

        A unit stays as it was if its translation is blank, or has not the tags of the source.
        """
        text, changes = self.file.text, {}  # by start, as units may share an edit
        for edit, parts in itertools.chain.from_iterable(self._written(translations)):
            if parts is not None:
                changes[edit.start] = edit.end, parts
        starts = sorted(changes)

        def changed(start: int, end: int, index: int) -> Iterator[str]:
            """Yield a range with the changes from an index on, also those in copied parts."""
            while index < len(starts) and starts[index] < end:
                yield text[start : starts[index]]
                start, parts = changes[starts[index]]
                for part in parts:
                    if isinstance(part, slice):
                        inner = bisect.bisect(starts, part.start)
                        yield from changed(part.start, part.stop, inner)
                    else:
                        yield re.sub(r"\r?\n", self.file.newline, part)
                index = max(index + 1, bisect.bisect_left(starts, start))
            yield text[start:end]

        filled, codec = "".join(changed(0, len(text) + 1, 0)), self.file.codec
        try:
            return filled.encode(codec, "xmlcharrefreplace" if self.file.is_markup else "strict")
        except UnicodeEncodeError as error:
            raise DataError(
                f"{self.file.path}: its charset {codec} lacks {filled[error.start]!r}, which a "
                f"translation has; convert the file to UTF-8 (msgconv, iconv)"
            ) from None
