"""Translate text line by line.

Translate standard input or a file, line by line and in order, each sentence of a line on its own. A
language model completes each line as a prompt. An empty line stays empty. A pipe is read in
batches, so its first translations come after --batch-size lines or at its end.
"""

import collections
import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

import rich.progress
from pydantic import PositiveInt
from rich.console import Console

from tf_transformer.commands.models import open_translator
from tf_transformer.commands.options import MODEL, Checked, SearchOptions, argument, group, option
from tf_transformer.data.text import decode_lines
from tf_transformer.errors import InputError
from tf_transformer.files import naming
from tf_transformer.runs.run_directory import warn

if TYPE_CHECKING:
    from tf_transformer.inference.results import Translation

    Translate = Callable[[Iterable[str]], Iterator[list[Translation]]]

ADVICE_FOR_TEXT = "texts come from standard input (echo TEXT | …) or --input"
_LINES_NAMED = 5
_LINES_COMPARED = 8


class Options(Checked):
    """The options of `translate`."""

    model: str = argument(MODEL)
    input: str | None = option(None, "file to translate (default: standard input)", "F")
    output: str | None = option(None, "file to write (default: standard output)", "F")
    n_best: PositiveInt | None = option(
        None,
        "N translations of each line, searched as a whole; more than one as LINE ||| TRANSLATION "
        "||| SCORE, with lines counted from 0",
    )
    resume: bool = option(False, "continue an interrupted --output", name="continue")
    overwrite: bool = option(False, "replace an existing --output")
    search: SearchOptions = group(SearchOptions)


def run(options: Options) -> int:
    """Translate the input and write the translations."""
    _check_output(options)
    search = options.search
    with contextlib.ExitStack() as files:
        source, output = sys.stdin.buffer, sys.stdout.buffer
        if options.input:
            # Draw the progress bar only on a terminal that does not show the translations.
            console = Console(stderr=True)
            is_hidden = not (options.output and console.is_terminal)
            bar = {"description": "", "console": console, "transient": True, "disable": is_hidden}
            source = files.enter_context(rich.progress.open(options.input, "rb", **bar))
        lines = decode_lines(source, options.input or "standard input")
        translator = open_translator(options.model, search.threads)
        given = search.model_dump(exclude={"threads"})
        given |= {"n_best": options.n_best or 1, "by_sentence": options.n_best is None}
        translate = functools.partial(translator.stream, **given)
        translate([])  # refuses impossible options before anything is written
        done = 0
        files.enter_context(naming(options.output))  # also when the rest is written
        if options.resume and os.path.exists(options.output):
            output = files.enter_context(open(options.output, "rb+"))
            done = _skip_finished(lines, output, translate, options)
        elif options.output:
            output = files.enter_context(open(options.output, "wb"))
        results = translate(lines)
        if source.isatty():
            # Translate each line as soon as it is typed.
            results = itertools.chain.from_iterable(translate([line]) for line in lines)
        long_sources, long_translations, dropped = [], [], []
        number = done - 1
        for number, translations in enumerate(results, done):
            with naming(options.output):
                output.writelines(_written(number, translations, options.n_best or 1))
            if translations[0].source_truncated:
                long_sources.append(number + 1)
            elif translations[0].truncated:
                long_translations.append(number + 1)
            if translations[0].bytes_dropped:
                dropped.append(number + 1)
            if source.isatty():
                output.flush()
        output.flush()
    if options.resume and number < done:
        warn(f"{options.output}: nothing was left to translate.")
    problem = "were longer than the model's max_length and lost the rest"
    if options.n_best:
        problem = f"had several sentences, which --n-best searches as one, or {problem}"
    _warn_of_lines("source", problem, long_sources)
    _warn_of_lines("translation", "were stopped by the length limit", long_translations)
    _warn_of_lines("translation", "lack bytes that the model wrote, but form no character", dropped)
    return 0


def _check_output(options: Options) -> None:
    """Raise an `InputError` if options contradict each other or would destroy a file."""
    output = options.output
    if options.resume and not (options.input and output):
        raise InputError("--continue needs --input and --output, files that can be read again.")
    if options.resume and options.overwrite:
        raise InputError("--continue keeps an --output, and --overwrite replaces it. Omit one.")
    if output and (os.path.isdir(output) or not os.path.isdir(os.path.dirname(output) or ".")):
        raise InputError(f"{output}: --output must be a file in a folder that exists.")
    if not output or not os.path.isfile(output):
        return
    if options.input and os.path.exists(options.input) and os.path.samefile(options.input, output):
        raise InputError(f"{output}: is the input too; give another --output.")
    if not (options.resume or options.overwrite) and os.path.getsize(output):
        raise InputError(
            f"{output}: exists already. Give --overwrite to replace it, or --continue to "
            f"translate the lines that it lacks."
        )


def _written(number: int, translations: list["Translation"], n_best: int) -> Iterator[bytes]:
    """Yield the lines of the output for a line of the input."""
    for translation in translations:
        # Byte fallback can make line breaks, but each translation must be one line.
        text = " ".join(translation.text.splitlines())
        if n_best > 1:
            text = f"{number} ||| {text} ||| {translation.score:.4f}"
        yield text.encode() + b"\n"


def _skip_finished(
    lines: Iterator[str], output: BinaryIO, translate: "Translate", options: Options
) -> int:
    """Skip the input lines that an interrupted output has translated, and return their number.

    Remove the rest from the output: an incomplete line and, with n-best lists, the translations of
    the last source, of which some may be missing.

    Raises:
        InputError: The input has fewer lines, or the model repeats none of the last translations.
    """
    n_best = options.n_best or 1
    finished = [line for line in output if line.endswith(b"\n")]
    done = len(finished)
    if n_best > 1 and finished:
        numbers = [line.split(b" ||| ")[0] for line in finished]
        finished = finished[: numbers.index(numbers[-1])]
        done = len(set(numbers)) - 1
    skipped = collections.deque(enumerate(itertools.islice(lines, done)), _LINES_COMPARED)
    again = zip(skipped, translate(line for _, line in skipped), strict=True)
    expected = {text for (number, _), best in again for text in _written(number, best, n_best)}
    is_shorter = done and (not skipped or skipped[-1][0] + 1 < done)
    last = finished[-_LINES_COMPARED * n_best :]
    if is_shorter or (expected - {b"\n"} and expected.isdisjoint(last)):
        raise InputError(
            f"{options.output}: holds no translations of {options.input} by this model and search. "
            f"Give another --output."
        )
    output.seek(sum(map(len, finished)))
    output.truncate()
    return done


def _warn_of_lines(what: str, problem: str, lines: list[int]) -> None:
    if lines:
        named = ", ".join(map(str, lines[:_LINES_NAMED]))
        named += " …" if len(lines) > _LINES_NAMED else ""
        warn(f"{len(lines):,} {what}(s) {problem}: line {named}.")
