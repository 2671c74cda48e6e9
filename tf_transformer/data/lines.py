"""Lines of text files: plain, gzip and TSV."""

import codecs
import gzip
import io
import itertools
import os
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tf_transformer.errors import InputError
from tf_transformer.files import naming

FilePath = str | os.PathLike[str]
_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK_BYTES = 2**16
# Unicode categories of white space, controls and format characters (a zero width space).
_INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")


class DataError(InputError):
    """Data that cannot be used."""


def stream_lines(path: FilePath) -> Iterator[str]:
    """Yield the lines of a plain or gzip text file; see `decode_lines`.

    Raises:
        DataError: If the file cannot be read, is empty, or is not valid gzip or UTF-8.
    """
    number = 0
    try:
        with open(path, "rb") as file:
            # The first bytes, not the name, show whether the file is gzip.
            is_gzip = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            unpacked = gzip.open(file) if is_gzip else file
            while block := unpacked.read(_BLOCK_BYTES) + unpacked.readline():
                lines = _decode_block(block)
                yield from lines or decode_lines(io.BytesIO(block), str(path), number + 1)
                number += block.count(b"\n") or 1
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or f"damaged or incomplete gzip ({error})"
        raise DataError(f"{path}: {reason.lower()}; check the file (from {Path.cwd()})") from error
    if not number:
        raise DataError(f"{path}: the file is empty; give a file with one sentence on each line")


def _decode_block(block: bytes) -> list[str]:
    """Return what `decode_lines` yields, sooner; nothing if it has to look at each line."""
    if b"\0" in block or codecs.BOM_UTF8 in block:
        return []
    try:
        lines = block.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        return []
    return [line.removesuffix("\r") for line in lines]


def decode_lines(lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
    r"""Decode the lines of a binary file, and remove line ends and byte order marks.

    Only `"\n"` and `"\r\n"` end a line. `str.splitlines` would also split at U+2028, `"\x0b"` or
    `"\x85"`, which occur inside real sentences, and so would misalign the two languages.

    Args:
        lines: A file that is open for reading bytes.
        name: Name of the file for errors, which also give the number of a line that is not UTF-8.
        first: The number of the first line.
    """
    with naming(name):
        for number, line in enumerate(lines, start=first):
            try:
                # Make NULs invalid: no text has them, and UTF-16 that is read as UTF-8 has many.
                text = line.replace(b"\0", b"\xff").decode()
            except UnicodeDecodeError:
                is_utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                fault = "is UTF-16" if is_utf16 else "not valid UTF-8, or has a NUL"
                raise DataError(
                    f"{name}, line {number}: {fault}; convert the text (iconv), or unpack it"
                ) from None
            # Files that were joined, also by gzip, have byte order marks at any line.
            yield text.lstrip("\ufeff").removesuffix("\n").removesuffix("\r")


def stream_aligned(*paths: FilePath) -> Iterator[tuple[str, ...]]:
    """Yield line i of each file as a tuple: a source and its translation, or one line alone.

    Raises:
        DataError: If a file cannot be read, or one ends before the other.
    """
    files = [stream_lines(path) for path in paths]
    for number, lines in enumerate(itertools.zip_longest(*files)):
        if None in lines:
            # Both counts are more useful than the line where the shorter file ended.
            counts = [
                number + (line is not None) + sum(1 for _ in file)
                for line, file in zip(lines, files, strict=True)
            ]
            raise DataError(
                f"{paths[0]} has {counts[0]} but {paths[1]} has {counts[1]} lines; "
                f"line i of one must be the translation of line i of the other"
            )
        yield lines


def stream_tsv(path: FilePath) -> Iterator[tuple[str, str]]:
    """Yield the columns of lines `source TAB target`; two empty ones for a blank line.

    Quotes and backslashes are ordinary characters.

    Raises:
        DataError: If the file cannot be read, or a line has no tab or several.
    """
    for number, line in enumerate(stream_lines(path), start=1):
        columns = ("", "") if is_blank(line) else tuple(line.split("\t"))
        if len(columns) != 2:
            raise DataError(
                f"{path}, line {number}: {len(columns) - 1} tabs where 1 was expected; "
                f"write source, one tab, target"
            )
        yield columns


def is_blank(text: str) -> bool:
    """Return whether a text has no visible character; U+200B and U+FEFF are not visible."""
    if text[:1].isalnum():  # most sentences
        return False
    return all(unicodedata.category(character) in _INVISIBLE for character in text)
