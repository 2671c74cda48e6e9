"""Lines of a file or stream, translated in order and in bounded memory."""

import collections
import contextlib
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tf_transformer.data.text import DataError, decode_lines

if TYPE_CHECKING:
    from tf_transformer.inference.translation import Translation

_LINES_NAMED = 5
_LINES_COMPARED = 8
_SECONDS_BETWEEN_REPORTS = 30


def translate_lines(
    translate: Callable[[Iterable[str]], Iterator[list["Translation"]]],
    input_path: str | None,
    output_path: str | None,
    n_best: int | None,
    resume: bool,
) -> None:
    """Translates a file, or standard input, line by line.

    Args:
        translate: Translates any number of lines, see `Translator.stream`.
        input_path: The file; None is standard input. A byte order mark at its start is dropped.
        output_path: The file for the translations; None is standard output.
        n_best: As `translate` has it. More than 1 writes `LINE ||| TRANSLATION ||| SCORE`, lines
            counted from 0.
        resume: Whether to continue after the last complete line of `output_path`, of which a few
            are translated again to see that it is of this input.

    Raises:
        DataError: The input is not UTF-8; the output to continue is of another input, or was
            written in another way.
    """
    from tf_transformer.inference.sentences import parts_of  # loads TensorFlow

    by_sentence, n_best = n_best is None, n_best or 1
    with contextlib.ExitStack() as files:
        source, output = sys.stdin.buffer, sys.stdout.buffer
        if input_path:
            source = files.enter_context(open(input_path, "rb"))
        lines, sources = itertools.tee(decode_lines(source, input_path or "standard input"))
        results = translate(lines)  # refuses bad options before anything is written
        done = end = 0
        if output_path and resume and os.path.exists(output_path):
            done, end, last = _complete(output_path, n_best)
            # Of both at once: the one that is ahead keeps what the other has not read.
            pairs = zip(itertools.islice(lines, done), sources, strict=False)
            counted = enumerate((line for line, _ in pairs), start=1)
            skipped = collections.deque(counted, _LINES_COMPARED)
            if done and (not skipped or skipped[-1][0] < done):
                raise DataError(
                    f"{output_path}: holds translations of {done:,} lines, more than {input_path} "
                    f"has. It belongs to another input; give another --output."
                )
            again = enumerate(translate(line for _, line in skipped), done - len(skipped))
            found = {text for number, best in again for text in _written(number, best, n_best)}
            if (found := found - {b"\n"}) and found.isdisjoint(last):
                raise DataError(
                    f"{output_path}: ends with no translations of {input_path} by this model and "
                    f"search. It belongs to others; give another --output."
                )
            output = files.enter_context(open(output_path, "rb+"))
            output.seek(end)
            output.truncate()
        elif output_path:
            output = files.enter_context(open(output_path, "wb"))
        if source.isatty():
            # At a keyboard every line is answered at once.
            results = itertools.chain.from_iterable(translate([line]) for line in lines)
        several, long_sources, long_translations = [], [], []
        report = files.enter_context(_progress(input_path, output_path, done))
        number = done - 1
        for number, (translations, line) in enumerate(zip(results, sources, strict=True), done):
            output.writelines(_written(number, translations, n_best))
            if not by_sentence and len(parts_of([line])[0]) > 1:
                several.append(number + 1)
            if translations[0].source_truncated:
                long_sources.append(number + 1)
            elif translations[0].truncated:
                long_translations.append(number + 1)
            if source.isatty():
                output.flush()
            report(number + 1)
        output.flush()
    if resume and number < done:
        notice = f"{output_path}: has all {done:,} lines; nothing was left."
        print(f"tf-transformer: {notice}", file=sys.stderr)
    _warn("line", "of several sentences, but searched whole for --n-best", several)
    _warn("source", "longer than the model's max_length and lost the rest", long_sources)
    _warn("translation", "stopped by the length limit before an end", long_translations)


def check_paths(
    input_path: str | None, output_path: str | None, resume: bool, overwrite: bool
) -> None:
    """Looks at the arguments of `translate_lines` before a model is loaded for them.

    Raises:
        DataError: A file or folder is missing, a directory is given for a file, both files are the
            same, there is nothing to continue, or the output exists and may not be overwritten.
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
    if not (resume or overwrite) and output_path and os.path.isfile(output_path):
        if os.path.getsize(output_path):
            raise DataError(
                f"{output_path}: exists already. Give --overwrite to replace it, or --continue to "
                f"translate the lines that it lacks."
            )


def _written(number: int, translations: list["Translation"], n_best: int) -> Iterator[bytes]:
    for translation in translations:
        # Byte fallback can make a line break; a line in is a line out.
        text = " ".join(translation.text.splitlines())
        if n_best > 1:
            text = f"{number} ||| {text} ||| {translation.score:.4f}"
        yield text.encode() + b"\n"


def _complete(path: str, n_best: int) -> tuple[int, int, Collection[bytes]]:
    """The number of complete translations of an output, the bytes of these, and the last lines."""
    done, end, number_of_last, last_start = 0, 0, None, 0
    last: collections.deque = collections.deque(maxlen=(_LINES_COMPARED + 1) * n_best)
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            last.append(line)
            if n_best == 1:
                done += 1
            else:
                number = line.split(b" ||| ", 1)[0]
                if not number.isdigit() or line.count(b" ||| ") < 2:
                    raise DataError(
                        f"{path}: was not written with --n-best; omit --n-best or --continue."
                    )
                if number != number_of_last:
                    # All but the last line have all of their translations.
                    number_of_last, last_start, done = number, end, int(number)
            end += len(line)
    return done, end if n_best == 1 else last_start, last


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
