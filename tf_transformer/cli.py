"""The command line: `tf-transformer COMMAND`."""

import errno
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

from tf_transformer.commands.options import Parser, add_options, read_options
from tf_transformer.errors import InputError
from tf_transformer.machine import discard_stdout, is_stdout_broken, prepare_command

COMMANDS = {
    name.rstrip("_"): importlib.import_module(f"tf_transformer.commands.{name}")
    for name in (
        "train", "evaluate", "export", "translate", "serve", "doctor", "import_", "filter",
    )
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The arguments of the command line. None means the arguments of the process.

    Returns:
        The exit status: 0 for success; 1 if a check of `doctor` failed; 2 for invalid input; 129
        after SIGHUP; 130 after Ctrl-C; 138 if another worker failed; 143 after SIGTERM.
    """
    prepare_command()
    values = vars(make_parser().parse_args(arguments))
    command = values.pop("command")
    try:
        status = command.run(read_options(command.Options, values))
        sys.stdout.flush()
        return status
    except (KeyboardInterrupt, Exception) as error:
        if _is_interruption(error):
            message, status = "interrupted.", 130
        elif isinstance(error, InputError):
            message, status = str(error), error.status
        elif isinstance(error, BrokenPipeError) and is_stdout_broken():
            discard_stdout()  # its reader has what it wanted
            return 0
        elif isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            if not where and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                where = "standard output: "  # whatever writes a file names it
                discard_stdout()
            message, status = f"{where}{error.strerror or error}.", 2
        else:
            raise
        print(f"tf-transformer: {message}", file=sys.stderr)
        return status


def _is_interruption(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error, even if a library raised another exception."""
    return isinstance(error, KeyboardInterrupt) or (
        error is not None and _is_interruption(error.__context__)
    )


def make_parser() -> Parser:
    """Return the parser of the command line.

    The parsed namespace holds the values of the options, and the module of the command as
    `command`.
    """
    parser = Parser(
        prog="tf-transformer",
        description="Train a Transformer on parallel text and translate with it.",
        epilog="To begin: tf-transformer train --corpus phrasebook --run-dir runs/first",
    )
    parser.add_argument(
        "--version", action="version", version=importlib.metadata.version("tf_transformer")
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary, *description, example = command.__doc__.strip().split("\n\n")
        text = "\n\n".join(description)
        child = commands.add_parser(name, help=summary, description=text, allow_abbrev=False)
        child.example = example
        child.advice_for_text = getattr(command, "ADVICE_FOR_TEXT", "")
        child.set_defaults(command=command)
        add_options(child, command.Options)
    return parser


if __name__ == "__main__":
    sys.exit(main())
