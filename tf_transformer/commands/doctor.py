"""`tf-transformer doctor`: checks of the installation and of an exported SavedModel."""

import argparse
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence

from tf_transformer.commands.models import open_translator, quiet, search_errors
from tf_transformer.data.text import read_lines, stream_aligned
from tf_transformer.errors import ConfigError, InputError
from tf_transformer.inference.versions import find_saved_model, versions
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.serving.doctor.doctor import Check, diagnose
from tf_transformer.serving.doctor.same_as import (
    Limits,
    Search,
    compare,
    exported_search,
    translate_as_a_server,
    translate_with_ctranslate2,
)

HELP = "check the installation, and a SavedModel before it is served"
DESCRIPTION = (
    "Checks the installed packages and, where one is given, a SavedModel: its files, its ops "
    "against those of TensorFlow Serving, and all its signatures in a process that cannot import "
    "this package. With --same-as it also checks that another form of the model translates a file "
    "alike. Each check is a line: ok, FAIL with what to do, or note. The exit status is 1 if one "
    "failed."
)
_CTRANSLATE2 = "model.bin"  # the file that every CTranslate2 export has
_NAME_WIDTH = 10

# Translates lines, searching as the SavedModel does.
_Translate = Callable[[Sequence[str], Search], Sequence[str]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "saved_model", nargs="?", metavar="SAVED_MODEL", help="default: the installation only"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--same-as",
        metavar="MODEL",
        help="a run, a CTranslate2 export or another SavedModel that should translate alike",
    )
    parser.add_argument("--source", metavar="F", help="lines to translate with both")
    parser.add_argument("--reference", metavar="F", help="their translations, to compare BLEU too")
    parser.add_argument(
        "--max-different",
        type=_number(1),
        default=Limits().different,
        metavar="SHARE",
        help=f"share of the lines that may differ, from 0 to 1 (default: {Limits().different})",
    )
    parser.add_argument(
        "--max-bleu-difference",
        type=_number(100),
        default=Limits().bleu,
        metavar="B",
        help=f"BLEU that may be between the two (default: {Limits().bleu})",
    )


def run(options: argparse.Namespace, started: float) -> int:
    """Checks."""
    _require_complete(options)
    folder = find_saved_model(options.saved_model) if options.saved_model else None
    # Read first, so that a wrong path is refused at once.
    translate = _other_form(options.same_as) if options.same_as else None
    sources, references = _read_text(options)

    checks = []
    for check in _checks(folder, translate, sources, references, options):
        checks.append(check)
        if not options.json:
            _print(check)
    failed = sum(check.status == "FAIL" for check in checks)
    if options.json:
        results = [{**check._asdict(), **check.values} for check in checks]
        for result in results:
            del result["values"]
        report = {"saved_model": folder and str(folder), "failed": failed, "checks": results}
        print(json.dumps(report))
    else:
        print(f"{failed} failed." if failed else "Nothing failed.")
    return 1 if failed else 0


def _checks(
    folder: pathlib.Path | None,
    translate: _Translate | None,
    sources: Sequence[str],
    references: Sequence[str] | None,
    options: argparse.Namespace,
) -> Iterator[Check]:
    newest = max(versions(options.saved_model), default=None) if folder else None
    if newest is not None and folder != pathlib.Path(options.saved_model, str(newest)):
        yield Check(
            "version",
            "FAIL",
            f"{pathlib.Path(options.saved_model, str(newest))}: a server takes this version, which "
            f"holds no SavedModel. Remove it, or export again.",
        )
    loads = False
    for check in diagnose(folder):
        loads = loads or (check.name, check.status) == ("session", "ok")
        yield check
    if translate is None:
        return
    if not loads:
        yield Check("same", "note", "not compared, since the SavedModel does not load")
        return
    limits = Limits(options.max_different, options.max_bleu_difference)
    with quiet():
        try:
            search = exported_search(folder)
            with search_errors():
                theirs = translate(sources, search)
            ours = translate_as_a_server(folder, sources)
        except InputError as error:  # not through quiet, which would show TensorFlow's notes
            yield Check("same", "FAIL", str(error))
            return
    yield from compare(sources, (ours, theirs), references, limits)


def _print(check: Check) -> None:
    lines = [f"{check.status:4}  {check.name:{_NAME_WIDTH}}  {check.message}"]
    for example in check.values.get("examples", ()):
        lines.append(f"      line {example['line']}: {example['source']}")
        lines.append(f"        SavedModel: {example['saved_model']}")
        lines.append(f"        other form: {example['other']}")
    for line in lines:
        # A damaged file or a bad translation may hold what confuses a terminal.
        print("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line), flush=True)


def _require_complete(options: argparse.Namespace) -> None:
    """Raises a `ConfigError` unless the options that need each other are given."""
    if options.same_as and not (options.saved_model and options.source):
        raise ConfigError("--same-as needs SAVED_MODEL and --source, lines to translate with both.")
    if options.source and not options.same_as:
        raise ConfigError("--source needs --same-as, what to compare the SavedModel with.")
    if options.reference and not options.source:
        raise ConfigError("--reference needs --source, the lines that it translates.")


def _read_text(options: argparse.Namespace) -> tuple[list[str], list[str] | None]:
    """The lines of --source, and those of --reference."""
    if not options.source:
        return [], None
    if not options.reference:
        return read_lines(options.source), None
    pairs = list(stream_aligned(options.source, options.reference))
    return [source for source, _ in pairs], [reference for _, reference in pairs]


def _other_form(path: str) -> _Translate:
    """How the model at a path translates; a `Translator` or an engine is made when it does.

    Raises:
        SavedModelError: There is no model.
    """
    if RunDirectory.is_run(path):
        return lambda texts, search: open_translator(
            path, argparse.Namespace(xla=False, threads=None)
        )(texts, beam_size=search.beam_size, length_penalty=search.length_penalty)
    candidates = [
        pathlib.Path(path),
        *(pathlib.Path(path, str(v)) for v in reversed(versions(path))),
    ]
    for candidate in candidates:
        if (candidate / _CTRANSLATE2).is_file():
            return lambda texts, search: translate_with_ctranslate2(candidate, texts, search)
    other = find_saved_model(path)
    return lambda texts, search: translate_as_a_server(other, texts)


def _number(most: float) -> Callable[[str], float]:
    """The type of an option that is a number from 0 to `most`."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a number from 0 to {most:g}, not {text!r}")
        return value

    return number
