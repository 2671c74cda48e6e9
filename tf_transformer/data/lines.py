"""Lines of text files, plain or gzip-compressed, streamed or read at once."""

import gzip
import itertools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tf_transformer.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK = 2**20  # bytes read at once


class DataError(InputError):
    """Data that cannot be used."""


def stream_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    r"""Yields the lines of a UTF-8 text file; few are in memory at a time.

    Only `"\n"` and `"\r\n"` end a line. `str.splitlines` would also split at U+2028, `"\x0b"` or
    `"\x85"`, which occur inside real sentences, and so shift one language against the other.

    Args:
        path: The file. Whether it is compressed is read from its first bytes, not its name.

    Yields:
        The lines without their ends, at least one. A byte order mark at the start is removed.

    Raises:
        DataError: If the file cannot be read, is empty, or is not valid gzip or UTF-8; raised
            when reading reaches the error.
    """
    num_lines = 0
    for block in _whole_lines(Path(path)):
        if not num_lines:
            block = block.removeprefix(BYTE_ORDER_MARK)
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            number = num_lines + block.count(b"\n", 0, error.start) + 1
            raise DataError(
                f"{path}, line {number}: not valid UTF-8; convert the file to UTF-8 "
                "(for example with iconv)"
            ) from error
        lines = text.replace("\r\n", "\n").split("\n")
        if not lines[-1]:  # The last "\n" ends a line, it does not start another.
            lines.pop()
        num_lines += len(lines)
        yield from lines
    if not num_lines:
        raise DataError(f"{path}: the file is empty; give a file with one sentence on each line")


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Reads all lines of a file, see `stream_lines`."""
    return list(stream_lines(path))


def stream_aligned(
    source_path: str | os.PathLike[str], target_path: str | os.PathLike[str]
) -> Iterator[tuple[str, str]]:
    """Yields the lines of two files in pairs: line i of one translates line i of the other.

    Args:
        source_path: Sentences of the source language, see `stream_lines`.
        target_path: Sentences of the target language.

    Raises:
        DataError: If a file cannot be read, or one ends before the other.
    """
    sources, targets = stream_lines(source_path), stream_lines(target_path)
    for number, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
        if source is None or target is None:
            # Both counts are more useful than the line where the shorter file ended.
            num_sources = number + (source is not None) + sum(1 for _ in sources)
            num_targets = number + (target is not None) + sum(1 for _ in targets)
            raise DataError(
                f"{source_path} has {counted(num_sources, 'line')} but {target_path} has "
                f"{num_targets}; line i of one must be the translation of line i of the other"
            )
        yield source, target


def counted(number: int, noun: str) -> str:
    """Returns a number and its noun, such as `"1 line"` or `"2 lines"`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yields the content of a file in blocks that end with a line."""
    begun = b""
    for block in _blocks(path):
        lines, newline, rest = block.rpartition(b"\n")
        if newline:
            yield begun + lines + newline
            begun = rest
        else:
            begun += block
    if begun:
        yield begun


def _blocks(path: Path) -> Iterator[bytes]:
    """Yields the content of a file in blocks, decompressed if it is gzip."""
    if path.is_dir():
        raise DataError(f"{path}: a directory where a file was expected; name a file in it")
    try:
        with path.open("rb") as file:
            if file.peek(2).startswith(_GZIP_MAGIC):
                yield from _decompressed_blocks(path, file)
            else:
                yield from iter(lambda: file.read(_BLOCK), b"")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path (from {Path.cwd()})") from error
    except PermissionError as error:
        raise DataError(f"{path}: no permission to read it; check its access rights") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _decompressed_blocks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        with gzip.open(file) as decompressed:
            yield from iter(lambda: decompressed.read(_BLOCK), b"")
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"{path}: damaged or incomplete gzip ({error}); copy or download it again"
        ) from error
