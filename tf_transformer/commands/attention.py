"""Draw the alignment of a text and its translation.

Draws how much each token of a translation attends to each token of the text, with the search as
exported. Needs matplotlib.
"""

import warnings

from tf_transformer.commands.models import open_translator
from tf_transformer.commands.options import MODEL, Checked, argument, option
from tf_transformer.errors import InputError
from tf_transformer.runs.run_directory import warn


class Options(Checked):
    """The options of `attention`."""

    model: str = argument(MODEL)
    text: str = argument("TEXT", "one line")
    target: str | None = option(
        None, "its translation (default: what the model translates)", "TEXT"
    )
    output: str = option("attention.png", "default: attention.png; also .svg, .pdf", "F")


def run(options: Options) -> int:
    """Draws the alignment into a file."""
    from tf_transformer.visualization.attention import plot_alignment
    from tf_transformer.visualization.figure import require_picture, save_figure

    require_picture(options.output)
    text = " ".join(options.text.split())
    if not text:
        raise InputError("TEXT is empty, so there is nothing to draw.")
    translator = open_translator(options.model, threads=1)
    if getattr(translator.module, "align", None) is None:
        raise InputError(
            f"{options.model}: this model has no alignment, because it has no attention to the "
            f"source, or its SavedModel is of an earlier version."
        )
    if options.target is None:
        target = translator(text)
        print(target)
    else:
        target = " ".join(options.target.split())
    [found] = translator.align([text], [target])
    if not found.target_subwords:
        raise InputError("the translation is empty, so there is nothing to draw; give a --target.")
    if found.truncated:
        warn("a side has more tokens than the model takes; its end is left out.")
    figure = plot_alignment(found.attention, found.source_subwords, found.target_subwords)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "Glyph .* missing from font")
        save_figure(figure, options.output)
    if caught:
        warn("no installed font has some of the characters; install one of Noto Sans.")
    print(options.output)
    return 0
