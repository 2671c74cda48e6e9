"""Files of translators: PO, XLIFF, TMX, HTML and SRT.

A file is read as units with places, and each translation is put into its place. All else in the
file, such as comments, indentation and line ends, stays equal byte by byte.
"""

from collections.abc import Iterator
from pathlib import Path

from tf_transformer.data.lines import DataError, FilePath
from tf_transformer.data.translation_files.document import Document, TextFile
from tf_transformer.data.translation_files.html_pages import read_html
from tf_transformer.data.translation_files.markup import on_one_line
from tf_transformer.data.translation_files.po import read_po
from tf_transformer.data.translation_files.subtitles import read_srt
from tf_transformer.data.translation_files.xml_files import read_tmx, read_xliff

_XML = rb"\A(?:\xef\xbb\xbf)?<\?xml[^>]*encoding\s*=\s*[\"']([\w.:-]+)"
_HTML = read_html, rb"(?i)<meta\s[^>]*charset\s*=\s*[\"']?([\w.:-]+)"
_PO = read_po, rb'"Content-Type:[^"]*charset=(?!CHARSET)([\w.:-]+)'
_XLIFF = read_xliff, _XML
_FORMATS = {".po": _PO, ".pot": _PO, ".xlf": _XLIFF, ".xliff": _XLIFF, ".html": _HTML}
_OTHERS = set(
    ".arb .docx .dtd .ini .json .odt .properties .resx .strings .ts .xml .yaml .yml".split()
)
_WITH_PAIRS = (".po", ".xlf", ".xliff", ".tmx")
_FORMATS |= {".htm": _HTML, ".tmx": (read_tmx, _XML), ".srt": (read_srt, rb"(?!)")}


def open_document(path: FilePath) -> Document | None:
    """Return the document in a file, whose suffix tells the format; None for any other file."""
    suffix = Path(path).suffix.lower()
    if suffix in _OTHERS:
        raise DataError(f"{path}: {suffix} is not read; convert it to PO (translate-toolkit)")
    if suffix == ".tmx":
        raise DataError(f"{path}: a TMX file has pairs for training; translate their original")
    if suffix not in _FORMATS:
        return None
    read, charset = _FORMATS[suffix]
    file = TextFile(path, charset)
    return Document(file, read(file))


def read_pairs(path: FilePath) -> Iterator[tuple[str, str]]:
    """Yield what a person translated in a PO, XLIFF or TMX file, without tags, on one line.

    Raises:
        DataError: The file cannot be read, or is of another format.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _WITH_PAIRS:
        raise DataError(f"{path}: must be one of {', '.join(_WITH_PAIRS)} to have pairs")
    read, charset = _FORMATS[suffix]
    for unit in read(TextFile(path, charset)):
        if unit.pair and all(map(str.strip, unit.pair)):
            source, target = (on_one_line(side).strip(" ") for side in unit.pair)
            yield source, target
