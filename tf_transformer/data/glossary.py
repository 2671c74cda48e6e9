"""Glossaries: terms and the translations that they must have."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from tf_transformer.data.lines import DataError, FilePath, stream_lines
from tf_transformer.data.translation_files.markup import on_one_line
from tf_transformer.normalization import composed


def read_terms(path: FilePath) -> dict[str, str]:
    """Read a glossary: a TBX file, a CSV file, or lines of `source TAB target`.

    A first row `source,target` of a CSV file is its header. In TBX the first two languages of an
    entry are source and target, each with its first term.

    Raises:
        DataError: The file cannot be read, or has no terms.
    """
    suffix, lines = Path(path).suffix.lower(), list(stream_lines(path))
    if suffix in (".tbx", ".xml"):
        rows = _rows_of_tbx(path, "\n".join(lines))
    elif suffix == ".csv":
        first = re.sub('"[^"]*"', "", next(filter(str.strip, lines), ""))
        separator = next((sign for sign in ";\t" if sign in first), ",")
        try:
            rows = list(csv.reader((f"{line}\n" for line in lines), delimiter=separator))
        except csv.Error as error:
            raise DataError(f"{path}: is no CSV ({error}); check its quotes") from None
    else:
        rows = [line.split("\t") for line in lines]
    rows = [row for row in rows if any(map(str.strip, row))]
    if not rows:
        raise DataError(f"{path}: has no terms; give another glossary")
    if suffix == ".csv" and [cell.strip().lower() for cell in rows[0][:2]] == ["source", "target"]:
        del rows[0]
    for number, row in enumerate(rows, 1):
        if len(row) < 2 or not (row[0].strip() and row[1].strip()):
            raise DataError(f"{path}, entry {number}: needs a term and its translation")
    terms: dict[str, str] = {}
    for source, target, *_ in rows:  # of which the first counts; a cell may have several lines
        terms.setdefault(on_one_line(source).strip(), on_one_line(target).strip())
    return terms


def _rows_of_tbx(path: FilePath, text: str) -> list[list[str]]:
    if "<!ENTITY" in text:  # no entity is ever expanded
        raise DataError(f"{path}: defines entities, which are not read; write them out")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DataError(f"{path}: is not valid XML ({error}); check the file") from None
    entries = [*_elements(root, "termEntry"), *_elements(root, "conceptEntry")]
    languages = ([*_elements(e, "langSet"), *_elements(e, "langSec")] for e in entries)
    rows = [
        ["".join(term.itertext()) for each in entry for term in _elements(each, "term")[:1]]
        for entry in languages
    ]
    if not (pairs := [row for row in rows if len(row) > 1]):
        raise DataError(f"{path}: has no entry in two languages; give another glossary")
    return pairs


def _elements(parent: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Return the elements of a name in any namespace."""
    return parent.findall(f".//{{*}}{name}")


class Glossary:
    """Terms and their translations, to find those that may be in a text.

    Raises:
        DataError: A term or its translation is blank, or has a tab or a line break.
    """

    def __init__(self, terms: Mapping[str, str]) -> None:
        for pair in terms.items():
            if not all(re.fullmatch(r"[^\t\n]*\S[^\t\n]*", side) for side in pair):
                raise DataError(
                    f"the term {pair[0]!r} and its translation must have text, but no tabs or line "
                    f"breaks"
                )
        self._lines = [(_folded(term[0]), "\t".join(term)) for term in terms.items()]

    def terms_in(self, text: str) -> str:
        """Return the terms that may be in a text as lines of `source TAB target`."""
        folded = _folded(text)
        return "\n".join(line for source, line in self._lines if source in folded)


def _folded(text: str) -> str:
    return " ".join(composed(text.casefold()).split())
