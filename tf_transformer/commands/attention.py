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
    """Draws the alignment into a file."""
    from tf_transformer.visualization.attention import plot_alignment
    from tf_transformer.visualization.figure import require_picture, save_figure

    require_picture(options.output)
    for name, text in (("TEXT", options.text), ("--target", options.target)):
        if text is not None and not text.split():
            raise InputError(f"{name} is empty, so there is nothing to draw.")
    text, target = (
        side and " ".join(side.split()) for side in (options.text, options.target)
    )  # one line
    translator = open_translator(options.model, options)
    if getattr(translator.module, "align", None) is None:
        raise InputError(
            f"{options.model}: this model has no alignment, because it has no attention to the "
            f"source, or its SavedModel is of an earlier version."
        )
    if target is None:
        target = translator(text)
        print(target)
    [found] = translator.align([text], [target])
    if not found.target_subwords:
        raise InputError("the translation is empty, so there is nothing to draw; give a --target.")
    if found.truncated:
        _note("a side has more tokens than the model takes; its end is left out.")
    figure = plot_alignment(found.attention, found.source_subwords, found.target_subwords)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "Glyph .* missing from font")
        save_figure(figure, options.output)
    if caught:
        _note("no installed font has some of the characters; install one of Noto Sans.")
    print(options.output)
    return 0


def _note(line: str) -> None:
    print(f"tf-transformer attention: {line}", file=sys.stderr)
