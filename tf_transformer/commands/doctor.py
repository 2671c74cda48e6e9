"""Check the installation, and a SavedModel before it is served.

Check the installation and, if one is given, a SavedModel: its files, its variables, its warm-up
requests and its signatures, in a process that cannot import this package. With --same-as, also
check that another form of the model gives the same translations. Each check prints one line: ok,
note, or FAIL with advice. The exit status is 1 if a check failed.

tf-transformer doctor saved_models/de_en --same-as runs/de_en --source test.de
"""

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from pydantic import Field

from tf_transformer.commands.open_translator import open_translator
from tf_transformer.commands.options import Checked, argument, option
from tf_transformer.data.lines import read_lines
from tf_transformer.errors import ConfigError
from tf_transformer.inference.versions import find_saved_model, versions
from tf_transformer.machine import num_cores, only_errors_of_tensorflow
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.serving.checks import Check, diagnose

_BATCH_SIZE = 64  # sentences, as `Translator` has them
_EXAMPLES = 3  # of lines that differ, to see what kind of difference it is
_Translate = Callable[..., list[str]]


class Options(Checked):
    """The options of `doctor`."""

    saved_model: str | None = argument("SAVED_MODEL", "default: check only the installation", None)
    same_as: str | None = option(
        None, "a run or another SavedModel that should give the same translations", "MODEL"
    )
    source: str | None = option(None, "lines to translate with both models", "F")
    max_different: Annotated[float, Field(ge=0, le=1)] = option(
        0.01, "share of the lines that may differ, from 0 to 1", "SHARE"
    )


def run(options: Options) -> int:
    """Run the checks and print their results."""
    compared = options.same_as, options.source
    if not options.same_as and "max_different" in options.model_fields_set:
        raise ConfigError("--max-different is for a comparison. Give --same-as and --source.")
    if any(compared) and not all((*compared, options.saved_model)):
        raise ConfigError("--same-as needs SAVED_MODEL and --source, lines to translate with both.")
    folder = find_saved_model(options.saved_model) if options.saved_model else None
    comparison: Iterator[Check] = iter(())
    if options.same_as:
        other, sources = _other_form(options.same_as), read_lines(options.source)
        comparison = _compare(folder, other, sources, options.max_different)
    failed = 0
    for check in _checks(folder, comparison, options.saved_model):
        failed += check.status == "FAIL"
        # A damaged file or a bad translation may have characters that confuse a terminal.
        message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in check.message)
        print(f"{check.status:4}  {check.name:10}  {message}", flush=True)
    print(f"{failed} failed." if failed else "Nothing failed.")
    return 1 if failed else 0


def _checks(
    folder: pathlib.Path | None, comparison: Iterator[Check], path: str | None
) -> Iterator[Check]:
    highest = next(reversed(versions(path).values()), folder) if folder else None
    if folder != highest:
        message = f"{highest}: a server takes this version, which holds no SavedModel. Remove it."
        yield Check("version", "FAIL", message)
    loads = False
    for check in diagnose(folder):
        loads = loads or check[:2] == ("session", "ok")
        yield check
    if loads:
        yield from comparison


def _other_form(path: str) -> _Translate:
    """Return a function that translates lines with the model at `path`."""
    if RunDirectory.is_run(path):
        return lambda texts, **search: open_translator(path)(texts, **search)
    other = find_saved_model(path)
    return lambda texts, **search: _translate_in_session(other, texts)


def _translate_in_session(folder: pathlib.Path, texts: Sequence[str]) -> list[str]:
    """Translate lines as a server does."""
    from tf_transformer.inference.streams import translate_in_order
    from tf_transformer.serving.session import SavedModelSession

    def translate(batch: list[str]) -> list[str]:
        found = model.run("serving_default", {"text": [text.encode() for text in batch]})
        return [text.decode() for text in found["translation"]]

    with only_errors_of_tensorflow():  # one of the functions that load is deprecated
        model = SavedModelSession(folder)
    return list(translate_in_order(iter(texts), translate, _BATCH_SIZE, num_cores()))


def _compare(
    folder: pathlib.Path, translate: _Translate, sources: list[str], limit: float
) -> Iterator[Check]:
    """Yield the checks that a SavedModel and another form of it translate lines in the same way."""
    try:
        theirs = translate(sources, **open_translator(str(folder)).search)
        ours = _translate_in_session(folder, sources)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        yield Check("same", "FAIL", f"a model does not translate: {reason}")
        return
    lines = enumerate(zip(sources, ours, theirs, strict=True), start=1)
    different = [(n, *texts) for n, texts in lines if texts[1] != texts[2]]
    share = len(different) / len(sources)
    counts = f"{len(different):,} of {len(sources):,} lines differ, {share:.2%}"
    message = f"{counts}; --max-different allows {limit:.2%}"
    yield Check("same", "ok" if share <= limit else "FAIL", message)
    for number, source, our, their in different[:_EXAMPLES]:
        yield Check("same", "note", f"line {number}: {source!r} gives {our!r} and {their!r}")
