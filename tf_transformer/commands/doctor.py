"""Check the installation, and a SavedModel before it is served.

Check the installation and, if one is given, a SavedModel: its files, its variables, its warm-up
requests and its signatures, in a process that cannot import this package. Each check prints one
line: ok, note, or FAIL with advice. The exit status is 1 if a check failed.

tf-transformer doctor saved_models/de_en
"""

import itertools

from tf_transformer.commands.options import Checked, argument
from tf_transformer.inference.versions import find_saved_model, versions
from tf_transformer.serving.checks import Check, diagnose


class Options(Checked):
    """The options of `doctor`."""

    saved_model: str | None = argument("SAVED_MODEL", "default: check only the installation", None)


def run(options: Options) -> int:
    """Run the checks and print their results."""
    folder = find_saved_model(options.saved_model) if options.saved_model else None
    highest = next(reversed(versions(options.saved_model).values()), folder) if folder else None
    checks, failed = diagnose(folder), 0
    if folder != highest:
        message = f"{highest}: a server takes this version, which holds no SavedModel. Remove it."
        checks = itertools.chain([Check("version", "FAIL", message)], checks)
    for check in checks:
        failed += check.status == "FAIL"
        # A damaged file or a bad translation may have characters that confuse a terminal.
        message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in check.message)
        print(f"{check.status:4}  {check.name:10}  {message}", flush=True)
    print(f"{failed} failed." if failed else "Nothing failed.")
    return 1 if failed else 0
