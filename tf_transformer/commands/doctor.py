"""Check the installation, and a SavedModel before it is served.

Check the installation and, if one is given, a SavedModel: its files, its variables, its warm-up
requests and its signatures, in a process that cannot import this package. Each check prints one
line: ok, note, or FAIL with advice. The exit status is 1 if a check failed.

tf-transformer doctor saved_models/de_en
"""

import pathlib
from collections.abc import Iterator

from tf_transformer.commands.options import Checked, argument
from tf_transformer.inference.versions import find_saved_model, versions
from tf_transformer.serving.checks import Check, diagnose


class Options(Checked):
    """The options of `doctor`."""

    saved_model: str | None = argument("SAVED_MODEL", "default: check only the installation", None)


def run(options: Options) -> int:
    """Run the checks and print their results."""
    folder = find_saved_model(options.saved_model) if options.saved_model else None
    failed = 0
    for check in _checks(folder, options.saved_model):
        failed += check.status == "FAIL"
        # A damaged file or a bad translation may have characters that confuse a terminal.
        message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in check.message)
        print(f"{check.status:4}  {check.name:10}  {message}", flush=True)
    print(f"{failed} failed." if failed else "Nothing failed.")
    return 1 if failed else 0


def _checks(folder: pathlib.Path | None, path: str | None) -> Iterator[Check]:
    highest = next(reversed(versions(path).values()), folder) if folder else None
    if folder != highest:
        message = f"{highest}: a server takes this version, which holds no SavedModel. Remove it."
        yield Check("version", "FAIL", message)
    yield from diagnose(folder)
