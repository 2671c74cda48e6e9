"""The parser of the command line, and options that several commands share."""

import argparse
from typing import Any, NoReturn

from tf_transformer.errors import did_you_mean

MODEL = "RUN_DIR_OR_SAVED_MODEL"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and name the most similar option for an unknown one.

    Attributes:
        advice_for_text: What to do with a text that the command does not take.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **options)
        self.advice_for_text = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple:
        """Parses arguments; an unknown option is an error of the command, not of the program."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            advice = did_you_mean(unknown[0].split("=")[0], known, otherwise="")
            if self.advice_for_text and not unknown[0].startswith("-"):
                advice = self.advice_for_text
            self.error(f"unknown {' '.join(unknown)}{'; ' if advice else ''}{advice}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """Exits with status 2."""
        end = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message}{end} See {self.prog} --help\n")


def positive(text: str) -> int:
    """Converts the text of an option to a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def length_penalty(text: str) -> float:
    """Converts the text of an option to a number from 0 to 10."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 10:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 10, not {text!r}")
    return number


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a search."""
    parser.add_argument(
        "--beam-size",
        type=positive,
        metavar="K",
        help="beam size, 1 is greedy search (default: as exported; for a run 1)",
    )
    parser.add_argument(
        "--length-penalty",
        type=length_penalty,
        metavar="A",
        help="favour long translations, from 0 to 10 (default: as exported; for a run 0.6)",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="parallel batches (default: one a core)"
    )
    parser.add_argument(
        "--xla", action="store_true", help="compile the search by XLA, which pays for many lines"
    )
    parser.add_argument(
        "--batch-size",
        type=positive,
        default=64,
        metavar="N",
        help="sentences in a batch (default: 64)",
    )
