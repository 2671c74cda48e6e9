"""What `tf-transformer translate` does: lines in, lines out, in order and in bounded memory."""

import contextlib
import itertools
import os
import pathlib
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tf_transformer.data.parallel import DataError

_CUTS_NAMED = 5


def translate_lines(translate, input_path, output_path, n_best, resume):
    """Translates a file, or standard input, line by line.

    Args:
        translate: iterable of str -> iterator of lists of translations, best first, each with
            `text`, `score` and `truncated`.
        input_path, output_path: str, or None for standard input and output.
        n_best: int; more than 1 writes `LINE ||| TRANSLATION ||| SCORE`, lines counted from 0.
        resume: bool, whether to go on after what `output_path` holds.

    Raises:
        DataError: input or output is a directory, or they are one file, or there is nothing to go
            on with, or what is there is of another input.
    """
    if resume and not (input_path and output_path):
        raise DataError("--continue needs --input and --output, files that can be read again.")
    if input_path and os.path.isdir(input_path):
        raise DataError(f"{input_path}: a directory; give a file in it, one text on each line.")
    if output_path and os.path.isdir(output_path):
        raise DataError(f"{output_path}: a directory; give a file in it for the translations.")
    if input_path and output_path and os.path.realpath(input_path) == os.path.realpath(output_path):
        raise DataError(f"{output_path}: is the input too; give another --output.")
    with contextlib.ExitStack() as files:
        source, output = sys.stdin.buffer, sys.stdout.buffer
        if input_path:
            source = files.enter_context(open(input_path, "rb"))
        done = 0
        if output_path and resume and os.path.exists(output_path):
            done = _keep_whole(output_path, n_best)
            output = files.enter_context(open(output_path, "ab"))
        elif output_path:
            output = files.enter_context(open(output_path, "wb"))
        lines = (line.rstrip(b"\r\n").decode("utf-8", "replace") for line in source)
        if sum(1 for _ in itertools.islice(lines, done)) < done:
            raise DataError(
                f"{output_path}: holds translations of {done:,} lines, more than {input_path} has. "
                f"It is another's; give another --output."
            )
        results = translate(lines)
        if source.isatty():
            # At a keyboard every line is answered at once.
            results = itertools.chain.from_iterable(translate([line]) for line in lines)
        cut = []
        show = files.enter_context(_progress(input_path, output_path, done))
        for number, translations in enumerate(results, start=done):
            for translation in translations:
                # Byte fallback can make a line end; a line in is a line out.
                text = " ".join(translation.text.splitlines())
                if n_best > 1:
                    text = f"{number} ||| {text} ||| {translation.score:.4f}"
                output.write(text.encode("utf-8") + b"\n")
            if translations[0].truncated:
                cut.append(number + 1)
            if source.isatty():
                output.flush()
            show(number + 1)
        output.flush()
    if cut:
        named = ", ".join(map(str, cut[:_CUTS_NAMED])) + (" …" if len(cut) > _CUTS_NAMED else "")
        print(
            f"tf-transformer: {len(cut):,} of the sources or translations were too long and cut: "
            f"line {named}.",
            file=sys.stderr,
        )


def _keep_whole(path, n_best):
    """Cuts a stopped output back to whole translations; returns of how many sources they are."""
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
                    raise DataError(f"{path}: was not written with --n-best; leave one out.")
                if number != last:
                    # All but the last source have all of their translations.
                    last, last_start, done = number, end, int(number)
            end += len(line)
        file.truncate(end if n_best == 1 else last_start)
    return done


@contextlib.contextmanager
def _progress(input_path, output_path, done):
    """Yields what is told the number of lines done; a bar where both are files and a terminal."""
    console = Console(stderr=True)
    if not (input_path and output_path and console.is_terminal):
        yield lambda number: None
        return
    with pathlib.Path(input_path).open("rb") as file:
        total = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    columns = (BarColumn(20), TextColumn("{task.completed:,} of {task.total:,} lines"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda number: bar.update(task, completed=number)
