"""`tf-transformer doctor`: checks of the installation and of an exported SavedModel."""

import argparse
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence

from tf_transformer.commands.models import open_translator, quiet
from tf_transformer.data.text import read_lines, stream_aligned
from tf_transformer.errors import ConfigError
from tf_transformer.inference.versions import find_saved_model, versions
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.serving.doctor import (
    Check,
    compare,
    diagnose,
    exported_search,
    translate_in_session,
    translate_with_ctranslate2,
)

HELP = "check the installation, and a SavedModel before it is served"
DESCRIPTION = (
    "Checks the installation and, where one is given, a SavedModel: its files, its variables, its "
    "warm-up requests and its signatures, in a process that cannot import this package. With "
    "--same-as it also checks that another form of the model translates a file alike. Each check "
    "is a line: ok, FAIL with what to do, or note. The exit status is 1 if one failed."
)
_CTRANSLATE2 = "model.bin"  # the file that every CTranslate2 export has


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
        type=float,
        default=0.01,
        metavar="SHARE",
        help="share of the lines that may differ, from 0 to 1 (default: 0.01)",
    )
    parser.add_argument(
        "--max-bleu-difference",
        type=float,
        default=0.1,
        metavar="B",
        help="BLEU that may be between the two (default: 0.1)",
    )


def run(options: argparse.Namespace, started: float) -> int:
    """Checks."""
    if bool(options.same_as) != bool(options.source) or (
        options.source and not options.saved_model
    ):
        raise ConfigError("--same-as needs SAVED_MODEL and --source, lines to translate with both.")
    if options.reference and not options.source:
        raise ConfigError("--reference needs --source, the lines that it translates.")
    folder = find_saved_model(options.saved_model) if options.saved_model else None
    # Read first, so that a wrong path is refused at once.
    translate = _other_form(options.same_as) if options.same_as else None
    sources, references = _read_text(options)

    checks = []
    for check in _checks(folder, translate, sources, references, options):
        checks.append(check)
        if not options.json:
            # A damaged file or a bad translation may hold what confuses a terminal.
            message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in check.message)
            print(f"{check.status:4}  {check.name:10}  {message}", flush=True)
    failed = sum(check.status == "FAIL" for check in checks)
    if options.json:
        results = [check._asdict() for check in checks]
        report = {"saved_model": folder and str(folder), "failed": failed, "checks": results}
        print(json.dumps(report))
    else:
        print(f"{failed} failed." if failed else "Nothing failed.")
    return 1 if failed else 0


def _checks(
    folder: pathlib.Path | None,
    translate: Callable[[Sequence[str], int, float], Sequence[str]] | None,
    sources: Sequence[str],
    references: Sequence[str] | None,
    options: argparse.Namespace,
) -> Iterator[Check]:
    newest = max(versions(options.saved_model), default=None) if folder else None
    highest = pathlib.Path(options.saved_model or "", str(newest))
    if newest is not None and folder != highest:
        message = f"{highest}: a server takes this version, which holds no SavedModel. Remove it."
        yield Check("version", "FAIL", message)
    checks = []
    for check in diagnose(folder):
        checks.append(check[:2])
        yield check
    if translate is None:
        return
    if ("session", "ok") not in checks:
        yield Check("same", "note", "not compared, since the SavedModel does not load")
        return
    failure = None
    with quiet():
        try:
            theirs = translate(sources, *exported_search(folder))
            ours = translate_in_session(folder, sources)
        except Exception as error:  # of any of the libraries; outside, its notes would be shown
            failure = str(error).strip().partition("\n")[0]
    if failure is not None:
        yield Check("same", "FAIL", f"a model does not translate: {failure}")
        return
    limits = options.max_different, options.max_bleu_difference
    yield from compare(sources, ours, theirs, references, *limits)


def _read_text(options: argparse.Namespace) -> tuple[list[str], list[str] | None]:
    """Returns the lines of --source, and those of --reference."""
    if not options.source:
        return [], None
    if not options.reference:
        return read_lines(options.source), None
    sources, references = zip(*stream_aligned(options.source, options.reference), strict=True)
    return list(sources), list(references)


def _other_form(path: str) -> Callable[[Sequence[str], int, float], Sequence[str]]:
    """Returns what translates lines with the model at a path, and a beam size and length penalty.

    Raises:
        SavedModelError: There is no model.
    """
    if RunDirectory.is_run(path):
        options = argparse.Namespace(xla=False, threads=None)
        return lambda texts, beam_size, length_penalty: open_translator(path, options)(
            texts, beam_size=beam_size, length_penalty=length_penalty
        )
    folders = [pathlib.Path(path), *(pathlib.Path(path, str(n)) for n in versions(path)[::-1])]
    for folder in folders:
        if (folder / _CTRANSLATE2).is_file():
            return lambda texts, *search: translate_with_ctranslate2(folder, texts, *search)
    other = find_saved_model(path)
    return lambda texts, *search: translate_in_session(other, texts)
