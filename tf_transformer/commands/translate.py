"""`tf-transformer translate`: a line for each line, from a file or standard input."""

import argparse
import collections
import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from tf_transformer.commands.models import open_translator, search_errors
from tf_transformer.commands.options import MODEL, add_search_options, positive
from tf_transformer.data.text import decode_lines
from tf_transformer.errors import InputError

if TYPE_CHECKING:
    from tf_transformer.inference.results import Translation

HELP = "translate line by line"
DESCRIPTION = (
    "Translates standard input, or a file, line by line and in order, each sentence of a line on "
    "its own. A language model completes each line, its prompt. An empty line stays empty."
)
_LINES_NAMED = 5
_LINES_COMPARED = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.advice_for_text = "texts come from standard input (echo TEXT | …) or --input"
    parser.add_argument("model", metavar=MODEL)
    parser.add_argument("--input", metavar="F", help="default: standard input")
    parser.add_argument("--output", metavar="F", help="default: standard output")
    parser.add_argument(
        "--n-best",
        type=positive,
        metavar="N",
        help="N translations of each line, searched as a whole, as LINE ||| TRANSLATION ||| SCORE, "
        "lines counted from 0",
    )
    if_exists = parser.add_mutually_exclusive_group()
    if_exists.add_argument(
        "--continue",
        dest="resume",
        action="store_true",
        help="continue an interrupted --output after its last complete line",
    )
    if_exists.add_argument("--overwrite", action="store_true", help="replace an --output")
    add_search_options(parser)


def run(options: argparse.Namespace, started: float) -> int:
    """Translates."""
    _check_output(options)
    with contextlib.ExitStack() as files, search_errors():
        source, output = sys.stdin.buffer, sys.stdout.buffer
        if options.input:
            source = files.enter_context(open(options.input, "rb"))
        lines = decode_lines(source, options.input or "standard input")
        translator = open_translator(options.model, options)

        def translate(lines: Iterable[str]) -> Iterator[list["Translation"]]:
            return translator.stream(
                lines, options.n_best, options.batch_size, options.beam_size, options.length_penalty
            )

        translate([])  # refuses impossible options before anything is written
        done = 0
        if options.resume and os.path.exists(options.output):
            finished = _finished(options.output, options.n_best)
            done = _skip_finished(lines, finished, translate, options)
            output = files.enter_context(open(options.output, "rb+"))
            output.seek(sum(map(len, finished)))
            output.truncate()
        elif options.output:
            output = files.enter_context(open(options.output, "wb"))
        results = translate(lines)
        if source.isatty():
            # At a keyboard every line is answered at once.
            results = itertools.chain.from_iterable(translate([line]) for line in lines)
        long_sources, long_translations = [], []
        number = done - 1
        for number, translations in enumerate(_with_progress(results, options, done), done):
            output.writelines(_written(number, translations, options.n_best))
            if translations[0].source_truncated:
                long_sources.append(number + 1)
            elif translations[0].truncated:
                long_translations.append(number + 1)
            if source.isatty():
                output.flush()
        output.flush()
    if options.resume and number < done:
        print(f"tf-transformer: {options.output}: nothing was left to translate.", file=sys.stderr)
    problem = "longer than the model's max_length and lost the rest"
    if options.n_best:
        problem = f"of several sentences, which --n-best searches as one, or {problem}"
    _warn("source", problem, long_sources)
    _warn("translation", "stopped by the length limit before an end", long_translations)
    return 0


def _check_output(options: argparse.Namespace) -> None:
    """Raises an `InputError` where the output would destroy something."""
    output = options.output
    if options.resume and not (options.input and output):
        raise InputError("--continue needs --input and --output, files that can be read again.")
    if not output or not os.path.isfile(output):
        return
    if options.input and os.path.exists(options.input) and os.path.samefile(options.input, output):
        raise InputError(f"{output}: is the input too; give another --output.")
    if not (options.resume or options.overwrite) and os.path.getsize(output):
        raise InputError(
            f"{output}: exists already. Give --overwrite to replace it, or --continue to "
            f"translate the lines that it lacks."
        )


def _written(number: int, translations: list["Translation"], n_best: int | None) -> Iterator[bytes]:
    for translation in translations:
        # Byte fallback can make a line break; a line in is a line out.
        text = " ".join(translation.text.splitlines())
        if (n_best or 1) > 1:
            text = f"{number} ||| {text} ||| {translation.score:.4f}"
        yield text.encode() + b"\n"


def _finished(path: str, n_best: int | None) -> list[bytes]:
    """Returns the lines of an interrupted output that need not be written again."""
    with open(path, "rb") as file:
        lines = [line for line in file if line.endswith(b"\n")]
    if (n_best or 1) > 1 and lines:
        # The last source may lack some of its translations.
        last = lines[-1].split(b" ||| ")[0]
        lines = [line for line in lines if line.split(b" ||| ")[0] != last]
    return lines


def _skip_finished(
    lines: Iterator[str],
    finished: list[bytes],
    translate: Callable[[Iterable[str]], Iterator[list["Translation"]]],
    options: argparse.Namespace,
) -> int:
    """Skips the lines of the input that are finished, and returns their number.

    Raises:
        InputError: The input has fewer lines, or none of the last lines is translated so.
    """
    n_best = options.n_best
    done = len(finished)
    if (n_best or 1) > 1:
        done = len({line.split(b" ||| ")[0] for line in finished})
    skipped = collections.deque(enumerate(itertools.islice(lines, done)), _LINES_COMPARED)
    again = zip(skipped, translate(line for _, line in skipped), strict=True)
    expected = {text for (number, _), best in again for text in _written(number, best, n_best)}
    last = finished[-_LINES_COMPARED * (n_best or 1) :]
    is_shorter = done and (not skipped or skipped[-1][0] + 1 < done)
    if is_shorter or (expected - {b"\n"} and expected.isdisjoint(last)):
        raise InputError(
            f"{options.output}: holds no translations of {options.input} by this model and search. "
            f"It belongs to others; give another --output."
        )
    return done


def _with_progress(
    results: Iterator[list["Translation"]], options: argparse.Namespace, done: int
) -> Iterable[list["Translation"]]:
    """Draws a progress bar on a terminal where input and output are files."""
    console = Console(stderr=True)
    # A pipe can be read only once, so its lines cannot be counted first.
    if not (options.output and os.path.isfile(options.input or "") and console.is_terminal):
        return results
    with open(options.input, "rb") as file:
        total = sum(1 for _ in file)
    return track(results, "", total, done, console=console, transient=True)


def _warn(what: str, problem: str, lines: list[int]) -> None:
    if lines:
        named = ", ".join(map(str, lines[:_LINES_NAMED]))
        named += " …" if len(lines) > _LINES_NAMED else ""
        print(f"tf-transformer: {len(lines):,} {what}(s) {problem}: line {named}.", file=sys.stderr)
