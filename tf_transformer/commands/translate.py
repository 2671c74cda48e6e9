"""`tf-transformer translate`: a line for each line, from a file or standard input."""

import argparse
from collections.abc import Iterable

from tf_transformer.commands.models import open_translator, search_errors
from tf_transformer.commands.options import MODEL, add_search_options, positive

HELP = "translate line by line"
DESCRIPTION = (
    "Translates standard input, or a file, line by line and in order, each sentence of a line on "
    "its own. A language model completes each line, its prompt. An empty line stays empty."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.advice_for_text = "texts come from standard input (echo TEXT | …) or --input"
    parser.add_argument("model", metavar=MODEL)
    parser.add_argument("--input", metavar="F", help="default: standard input")
    parser.add_argument("--output", metavar="F", help="default: standard output")
    parser.add_argument(
        "--n-best",
        type=positive,
        metavar="N",
        help="N translations of each line, searched as a whole, as LINE ||| TRANSLATION ||| SCORE, "
        "lines counted from 0",
    )
    if_exists = parser.add_mutually_exclusive_group()
    if_exists.add_argument(
        "--continue",
        dest="resume",
        action="store_true",
        help="continue an interrupted --output after its last complete line",
    )
    if_exists.add_argument("--overwrite", action="store_true", help="replace an --output")
    add_search_options(parser)


def run(options: argparse.Namespace, started: float) -> int:
    """Translates."""
    from tf_transformer.inference.lines import check_paths, translate_lines

    check_paths(options.input, options.output, options.resume, options.overwrite)
    translator = open_translator(options.model, options)

    def translate(lines: Iterable[str]):
        return translator.stream(
            lines, options.n_best, options.batch_size, options.beam_size, options.length_penalty
        )

    with search_errors():
        translate_lines(translate, options.input, options.output, options.n_best, options.resume)
    return 0
