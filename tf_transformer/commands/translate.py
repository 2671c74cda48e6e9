"""Translate text line by line.

Translate standard input or a file, line by line and in order, each sentence of a line on its own. A
language model completes each line as a prompt. An empty line stays empty. A pipe is read in
batches, so its first translations come after --batch-size lines or at its end.

echo "Guten Morgen!" | tf-transformer translate saved_models/de_en
"""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import rich.progress
from pydantic import PositiveInt
from rich.console import Console

from tf_transformer.commands.open_translator import open_translator
from tf_transformer.commands.options import MODEL, Checked, SearchOptions, argument, group, option
from tf_transformer.data.glossary import read_terms
from tf_transformer.data.lines import decode_lines
from tf_transformer.data.pieces import SIGNS
from tf_transformer.data.shard import Shard
from tf_transformer.data.translation_files import open_document
from tf_transformer.data.translation_files.document import Document
from tf_transformer.errors import InputError
from tf_transformer.files import atomic_file, naming
from tf_transformer.runs.run_directory import warn

if TYPE_CHECKING:
    from tf_transformer.inference.results import Translation

ADVICE_FOR_TEXT = "texts come from standard input (echo TEXT | …) or --input"
_LINES_NAMED = 5  # in a warning, which is one line


class Options(Checked):
    """The options of `translate`."""

    model: str = argument(MODEL)
    input: str | None = option(
        None,
        "file to translate (default: standard input): lines, or a document: PO, XLIFF, HTML or SRT",
        "F",
    )
    output: str | None = option(None, "file to write (default: standard output)", "F")
    n_best: PositiveInt | None = option(
        None,
        "N translations of each line, searched as a whole; more than one as LINE ||| TRANSLATION "
        "||| SCORE, with lines counted from 0",
    )
    terms: str | None = option(
        None, "glossary: lines of SOURCE TAB TARGET (or .csv, .tbx), which is always followed", "F"
    )
    flags: bool = option(
        False, "write JSON lines, which also say what a person should look at, and how sure it is"
    )
    shard: str | None = option(
        None,
        "translate part I of N of --input, one of N jobs; --output appears when it is complete, "
        "and a job that finds it has nothing to do",
        "I/N",
    )
    overwrite: bool = option(False, "replace an existing --output")
    search: SearchOptions = group(SearchOptions)


def run(options: Options) -> int:
    """Translate the input and write the translations."""
    shard = Shard.of(options.shard) if options.shard else None
    if shard and not (options.input and options.output):
        raise InputError("--shard needs --input and --output.")
    if shard and os.path.isfile(options.output) and not options.overwrite:
        warn(f"{options.output}: is complete already.")
        return 0
    if shard and not os.path.isfile(options.input):
        raise InputError(f"{options.input}: is no file, of which --shard reads a part.")
    _check_output(options)
    search, document = options.search, options.input and open_document(options.input)
    if shard and document:
        raise InputError(f"{options.input}: a document has no shards, only lines have.")
    with contextlib.ExitStack() as files:
        source, output = sys.stdin.buffer, sys.stdout.buffer
        if options.input:
            # Draw the progress bar only on a terminal that does not show the translations.
            console = Console(stderr=True)
            is_hidden = shard or not (options.output and console.is_terminal)
            bar = {"description": "", "console": console, "transient": True, "disable": is_hidden}
            source = files.enter_context(rich.progress.open(options.input, "rb", **bar))
        first, encoded = shard.lines(source) if shard else (0, source)
        lines = decode_lines(encoded, options.input or "standard input", first + 1)
        terms = read_terms(options.terms) if options.terms else None
        translator = open_translator(options.model, search.threads, terms)
        search.require_beam(translator.search["beam_size"])
        given = search.model_dump(exclude={"threads"})
        given |= {"n_best": options.n_best or 1, "by_sentence": options.n_best is None}
        translate = functools.partial(translator.stream, **given)
        translate([])  # refuses impossible options before anything is written
        if document:
            return _fill(options, document, translate, translator.has_marks)
        files.enter_context(naming(options.output))
        if options.output:
            path = pathlib.Path(options.output)
            # What is replaced stays until all is there; otherwise the lines so far can be seen.
            is_whole = shard or (path.is_file() and path.stat().st_size and not source.isatty())
            path = files.enter_context(atomic_file(path)) if is_whole else path
            output = files.enter_context(path.open("wb"))
        results = translate(lines)
        if source.isatty():
            # Translate each line as soon as it is typed.
            results = itertools.chain.from_iterable(translate([line]) for line in lines)
        long_sources, long_translations, dropped = [], [], []
        for number, translations in enumerate(results, first):
            output.writelines(_written(number, translations, options))
            if translations[0].source_truncated:
                long_sources.append(number + 1)
            elif translations[0].truncated:
                long_translations.append(number + 1)
            if translations[0].bytes_dropped:
                dropped.append(number + 1)
            if source.isatty():
                output.flush()
        output.flush()
    problem = "were longer than the model's max_length and lost the rest"
    if options.n_best:
        problem = f"had several sentences, which --n-best searches as one, or {problem}"
    _warn_of_lines("source", problem, long_sources)
    _warn_of_lines("translation", "were stopped by the length limit", long_translations)
    _warn_of_lines("translation", "lack bytes that the model wrote, but form no character", dropped)
    return 0


def _fill(options: Options, document: Document, translate: Callable, has_marks: bool) -> int:
    """Translate the units of a document, and write the document with their translations."""
    if not options.output:
        raise InputError(f"{options.input}: is a document; give --output.")
    if options.flags or options.n_best:
        raise InputError(f"{options.input}: is a document; omit --flags and --n-best.")
    texts = document.to_translate
    if not has_marks:
        texts = [re.sub(SIGNS, "", text) for text in texts]
    found = [best for (best,) in translate(texts)]
    translations = [re.sub(SIGNS, "", best.text) for best in found]
    content, fits = document.filled(translations), document.fitting(translations)
    with atomic_file(pathlib.Path(options.output)) as temporary:
        temporary.write_bytes(content)
    warn(f"{sum(fits):,} of {len(document.units):,} units translated; look at all of them.")
    places = [unit.place.removeprefix("line ") for unit in document.units if unit.edits]
    lines = [p for p, is_fitting in zip(places, fits, strict=True) if not is_fitting]
    _warn_of_lines("unit", "of the input stay, as their translation is blank or lacks a tag", lines)
    for name in sorted({flag for best in found for flag in best.flags}):
        lines = [p for p, best in zip(places, found, strict=True) if name in best.flags]
        _warn_of_lines("unit", f"of the input have the flag {name}", lines)
    return 0


def _check_output(options: Options) -> None:
    """Raise an `InputError` if options contradict each other or would destroy a file."""
    output = options.output
    if output and (os.path.isdir(output) or not os.path.isdir(os.path.dirname(output) or ".")):
        raise InputError(f"{output}: --output must be a file in a folder that exists.")
    is_input = False
    with contextlib.suppress(OSError):  # there is none, or a stream is no file
        source, target = options.input or sys.stdin.fileno(), output or sys.stdout.fileno()
        is_input = os.path.isfile(target) and os.path.samefile(source, target)
    if is_input:  # which would never end
        raise InputError(f"{output or 'standard output'}: is the input too; give another --output.")
    is_file = output and os.path.isfile(output)
    if is_file and not options.overwrite and os.path.getsize(output):
        raise InputError(f"{output}: exists already. Give --overwrite to replace it.")


def _written(number: int, translations: list["Translation"], options: Options) -> Iterator[bytes]:
    """Yield the lines of the output for a line of the input."""
    for translation in translations:
        # Byte fallback can make line breaks, but each translation must be one line.
        text = " ".join(translation.text.splitlines())
        if options.flags:
            facts = {"line": number, "translation": text, "flags": translation.flags}
            facts |= {"score": translation.score, "expected_chrf": translation.expected_chrf}
            text = json.dumps(facts, ensure_ascii=False)
        elif (options.n_best or 1) > 1:
            text = f"{number} ||| {text} ||| {translation.score:.4f}"
        yield text.encode() + b"\n"


def _warn_of_lines(what: str, problem: str, lines: list[int | str]) -> None:
    if lines:
        named = ", ".join(map(str, lines[:_LINES_NAMED]))
        named += " …" if len(lines) > _LINES_NAMED else ""
        warn(f"{len(lines):,} {what}(s) {problem}: line {named}.")
