"""`tf-transformer attention`: which tokens of a text each token of its translation attends to."""

import argparse
import sys
import warnings

from tf_transformer.commands.models import open_translator
from tf_transformer.commands.options import MODEL
from tf_transformer.errors import InputError

HELP = "draw the alignment of a text and its translation"
DESCRIPTION = (
    "Draws how much each token of a translation attends to each token of the text, with the search "
    "as exported. Needs matplotlib."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("model", metavar=MODEL)
    parser.add_argument("text", metavar="TEXT", help="one line")
    parser.add_argument(
        "--target", metavar="TEXT", help="its translation (default: what the model translates)"
    )
    parser.add_argument(
        "--output",
        default="attention.png",
        metavar="F",
        help="default: attention.png; also .svg, .pdf",
    )
    parser.set_defaults(xla=False, threads=1)


def run(options: argparse.Namespace, started: float) -> int:
    """Draws."""
    from tf_transformer.visualization.attention import plot_alignment
    from tf_transformer.visualization.figures import require_format, save_figure

    require_format(options.output)
    source = _one_line("TEXT", options.text)
    target = None if options.target is None else _one_line("--target", options.target)
    translator = open_translator(options.model, options)
    if getattr(translator.module, "align", None) is None:
        raise InputError(
            f"{options.model}: this model has no alignment, because it has no attention to the "
            f"source, or its SavedModel is of an earlier version."
        )
    if target is None:
        target = translator(source)
        print(target)
    [found] = translator.align([source], [target])
    if not found.target_subwords:
        raise InputError("the translation is empty, so there is nothing to draw; give a --target.")
    if found.truncated:
        _note("a side has more tokens than the model takes; its end is left out.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        figure = plot_alignment(found.attention, found.source_subwords, found.target_subwords)
    for warning in caught:
        _note(str(warning.message))
    save_figure(figure, options.output)
    print(options.output)
    return 0


def _one_line(name: str, text: str) -> str:
    line = " ".join(text.split())
    if not line:
        raise InputError(f"{name} is empty, so there is nothing to draw.")
    return line


def _note(line: str) -> None:
    print(f"tf-transformer attention: {line}", file=sys.stderr)
