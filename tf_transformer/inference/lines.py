"""Lines of a file or stream, translated in order and in bounded memory."""

import contextlib
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tf_transformer.data.lines import BYTE_ORDER_MARK, DataError
from tf_transformer.inference.translation import Translation

_LINES_NAMED = 5
_SECONDS_BETWEEN_REPORTS = 30


def translate_lines(
    translate: Callable[[Iterable[str]], Iterator[list[Translation]]],
    input_path: str | None,
    output_path: str | None,
    n_best: int,
    resume: bool,
) -> None:
    """Translates a file, or standard input, line by line.

    Args:
        translate: Translates any number of lines, see `Translator.stream`.
        input_path: The file; None is standard input. A byte order mark at its start is dropped.
        output_path: The file for the translations; None is standard output.
        n_best: More than 1 writes `LINE ||| TRANSLATION ||| SCORE`, lines counted from 0.
        resume: Whether to continue after the last complete line of `output_path`.

    Raises:
        DataError: The output to continue is of another input, or was written in another way.
    """
    with contextlib.ExitStack() as files:
        source, output = sys.stdin.buffer, sys.stdout.buffer
        if input_path:
            source = files.enter_context(open(input_path, "rb"))
        lines = _decoded(source)
        results = translate(lines)  # refuses bad options before anything is written
        done = 0
        if output_path and resume and os.path.exists(output_path):
            done = _drop_incomplete(output_path, n_best)
            output = files.enter_context(open(output_path, "ab"))
        elif output_path:
            output = files.enter_context(open(output_path, "wb"))
        if sum(1 for _ in itertools.islice(lines, done)) < done:
            raise DataError(
                f"{output_path}: holds translations of {done:,} lines, more than {input_path} has. "
                f"It belongs to another input; give another --output."
            )
        if source.isatty():
            # At a keyboard every line is answered at once.
            results = itertools.chain.from_iterable(translate([line]) for line in lines)
        long_sources, long_translations = [], []
        report = files.enter_context(_progress(input_path, output_path, done))
        for number, translations in enumerate(results, start=done):
            for translation in translations:
                # Byte fallback can make a line break; a line in is a line out.
                text = " ".join(translation.text.splitlines())
                if n_best > 1:
                    text = f"{number} ||| {text} ||| {translation.score:.4f}"
                output.write(text.encode("utf-8") + b"\n")
            if translations[0].source_truncated:
                long_sources.append(number + 1)
            elif translations[0].truncated:
                long_translations.append(number + 1)
            if source.isatty():
                output.flush()
            report(number + 1)
        output.flush()
    _warn("source", "longer than the model's max_length and lost the rest", long_sources)
    _warn("translation", "stopped by the length limit before an end", long_translations)


def check_paths(input_path: str | None, output_path: str | None, resume: bool) -> None:
    """Looks at the arguments of `translate_lines` before a model is loaded for them.

    Raises:
        DataError: A file or folder is missing, a directory is given for a file, both files are the
            same, or there is nothing to continue.
    """
    if resume and not (input_path and output_path):
        raise DataError("--continue needs --input and --output, files that can be read again.")
    for path, content in ((input_path, "one text on each line"), (output_path, "translations")):
        if path and os.path.isdir(path):
            raise DataError(f"{path}: is a directory; give a file in it, for {content}.")
    folder = os.path.dirname(output_path or "")
    for path, is_there in ((input_path, os.path.exists), (folder, os.path.isdir)):
        if path and not is_there(path):
            raise DataError(f"{path}: no such file or folder; check the path (from {os.getcwd()}).")
    if input_path and output_path and os.path.realpath(input_path) == os.path.realpath(output_path):
        raise DataError(f"{output_path}: is the input too; give another --output.")


def _decoded(source: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(source):
        if number == 0:
            line = line.removeprefix(BYTE_ORDER_MARK)
        yield line.rstrip(b"\r\n").decode("utf-8", "replace")


def _drop_incomplete(path: str, n_best: int) -> int:
    """Truncates an interrupted output to its complete translations; returns their number."""
    done, end, last, last_start = 0, 0, None, 0
    with open(path, "rb+") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            if n_best == 1:
                done += 1
            else:
                number = line.split(b" ||| ", 1)[0]
                if not number.isdigit() or line.count(b" ||| ") < 2:
                    raise DataError(
                        f"{path}: was not written with --n-best; omit --n-best or --continue."
                    )
                if number != last:
                    # All but the last line have all of their translations.
                    last, last_start, done = number, end, int(number)
            end += len(line)
        file.truncate(end if n_best == 1 else last_start)
    return done


def _warn(what: str, problem: str, lines: list[int]) -> None:
    if not lines:
        return
    named = ", ".join(map(str, lines[:_LINES_NAMED])) + (" …" if len(lines) > _LINES_NAMED else "")
    count = f"1 {what} was" if len(lines) == 1 else f"{len(lines):,} {what}s were"
    print(f"tf-transformer: {count} {problem}: line {named}.", file=sys.stderr)


@contextlib.contextmanager
def _progress(
    input_path: str | None, output_path: str | None, done: int
) -> Iterator[Callable[[int], None]]:
    """Yields a function that is called with the number of lines done.

    Where input and output are files it draws a bar on a terminal, and elsewhere prints a line every
    half minute.
    """
    # A pipe can be read only once, so its lines cannot be counted first.
    if not (input_path and output_path and os.path.isfile(input_path)):
        yield lambda number: None
        return
    with pathlib.Path(input_path).open("rb") as file:
        total = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    console = Console(stderr=True)
    if not console.is_terminal:
        reported = time.monotonic()

        def report(number: int) -> None:
            nonlocal reported
            if time.monotonic() - reported > _SECONDS_BETWEEN_REPORTS:
                reported = time.monotonic()
                print(f"{number:,} of {total:,} lines", file=sys.stderr, flush=True)

        yield report
        return
    columns = (BarColumn(20), TextColumn("{task.completed:,} of {task.total:,} lines"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda number: bar.update(task, completed=number)
