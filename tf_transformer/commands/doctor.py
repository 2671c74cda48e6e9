"""Check the installation, and a SavedModel before it is served.

Checks the installation and, where one is given, a SavedModel: its files, its variables, its warm-up
requests and its signatures, in a process that cannot import this package. With --same-as it also
checks that another form of the model translates a file alike. Each check is a line: ok, FAIL with
what to do, or note. The exit status is 1 if one failed.
"""

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from pydantic import Field, NonNegativeFloat
from pydantic.dataclasses import dataclass

from tf_transformer.commands.models import open_translator, quiet
from tf_transformer.commands.options import argument, option
from tf_transformer.data.text import read_lines, stream_aligned
from tf_transformer.errors import ConfigError
from tf_transformer.inference.versions import find_saved_model, versions
from tf_transformer.models.configs import CHECKED
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.serving.doctor import (
    Check,
    compare,
    diagnose,
    exported_search,
    translate_in_session,
    translate_with_ctranslate2,
)

_CTRANSLATE2 = "model.bin"  # the file that every CTranslate2 export has


@dataclass(frozen=True, config=CHECKED)
class Options:
    """The options of `doctor`."""

    saved_model: str | None = argument("SAVED_MODEL", "default: the installation only", None)
    json: bool = option(False, "print one JSON object instead")
    same_as: str | None = option(
        None,
        "a run, a CTranslate2 export or another SavedModel that should translate alike",
        "MODEL",
    )
    source: str | None = option(None, "lines to translate with both", "F")
    reference: str | None = option(None, "their translations, to compare BLEU too", "F")
    max_different: Annotated[float, Field(ge=0, le=1)] = option(
        0.01, "share of the lines that may differ, from 0 to 1", "SHARE"
    )
    max_bleu_difference: NonNegativeFloat = option(0.1, "BLEU that may be between the two", "B")


def run(options: Options) -> int:
    """Checks."""
    if bool(options.same_as) != bool(options.source) or (
        options.source and not options.saved_model
    ):
        raise ConfigError("--same-as needs SAVED_MODEL and --source, lines to translate with both.")
    if options.reference and not options.source:
        raise ConfigError("--reference needs --source, the lines that it translates.")
    folder = find_saved_model(options.saved_model) if options.saved_model else None
    comparison = _comparison(folder, options) if options.same_as else None
    failed, results = 0, []
    for check in _checks(folder, comparison, options):
        failed += check.status == "FAIL"
        results.append(check._asdict())
        if not options.json:
            # A damaged file or a bad translation may hold what confuses a terminal.
            message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in check.message)
            print(f"{check.status:4}  {check.name:10}  {message}", flush=True)
    if options.json:
        report = {"saved_model": folder and str(folder), "failed": failed, "checks": results}
        print(json.dumps(report))
    else:
        print(f"{failed} failed." if failed else "Nothing failed.")
    return 1 if failed else 0


def _checks(
    folder: pathlib.Path | None, comparison: Callable[[], Iterator[Check]] | None, options: Options
) -> Iterator[Check]:
    newest = max(versions(options.saved_model), default=None) if folder else None
    if newest is not None and folder != (highest := pathlib.Path(options.saved_model, str(newest))):
        message = f"{highest}: a server takes this version, which holds no SavedModel. Remove it."
        yield Check("version", "FAIL", message)
    loads = False
    for check in diagnose(folder):
        loads = loads or check[:2] == ("session", "ok")
        yield check
    if comparison and loads:
        yield from comparison()
    elif comparison:
        yield Check("same", "note", "not compared, since the SavedModel does not load")


def _comparison(folder: pathlib.Path, options: Options) -> Callable[[], Iterator[Check]]:
    """Returns what compares two forms of a model; reads at once what could be a wrong path."""
    translate, sources = _other_form(options.same_as), read_lines(options.source)
    references = None
    if options.reference:
        references = [line for _, line in stream_aligned(options.source, options.reference)]

    def checks() -> Iterator[Check]:
        failure = None
        with quiet():
            try:
                theirs = translate(sources, *exported_search(folder))
                ours = translate_in_session(folder, sources)
            except Exception as error:  # outside of `quiet`, which would show the notes after all
                failure = str(error).strip().partition("\n")[0]
        if failure is not None:
            yield Check("same", "FAIL", f"a model does not translate: {failure}")
            return
        limits = options.max_different, options.max_bleu_difference
        yield from compare(sources, ours, theirs, references, *limits)

    return checks


def _other_form(path: str) -> Callable[[Sequence[str], int, float], Sequence[str]]:
    """Returns what translates lines with the model at a path, a beam size and a length penalty.

    Raises:
        SavedModelError: There is no model.
    """
    if RunDirectory.is_run(path):
        return lambda texts, beam_size, length_penalty: open_translator(path)(
            texts, beam_size=beam_size, length_penalty=length_penalty
        )
    folders = [pathlib.Path(path), *(pathlib.Path(path, str(n)) for n in versions(path)[::-1])]
    for folder in folders:
        if (folder / _CTRANSLATE2).is_file():
            return lambda texts, *search: translate_with_ctranslate2(folder, texts, *search)
    other = find_saved_model(path)
    return lambda texts, *search: translate_in_session(other, texts)
