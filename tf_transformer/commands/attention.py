"""Draw the alignment of a text and its translation.

Draw how much each token of a translation attends to each token of the text. Without --target, the
model translates the text with its default search. Needs matplotlib.

tf-transformer attention runs/de_en "Wo ist der Bahnhof?" --output attention.svg
"""

import warnings

from tf_transformer.commands.open_translator import open_translator
from tf_transformer.commands.options import MODEL, Checked, argument, option
from tf_transformer.errors import InputError
from tf_transformer.runs.run_directory import warn


class Options(Checked):
    """The options of `attention`."""

    model: str = argument(MODEL)
    text: str = argument("TEXT", "the source text")
    target: str | None = option(None, "its translation (default: that of the model)", "TEXT")
    output: str = option("attention.png", "a .png, .svg or .pdf file; default: attention.png", "F")


def run(options: Options) -> int:
    """Draw the alignment into a file."""
    from tf_transformer.visualization.attention_weights import plot_alignment
    from tf_transformer.visualization.figure import require_picture, save_figure

    require_picture(options.output)
    text = " ".join(options.text.split())
    if not text:
        raise InputError("TEXT is empty, so there is nothing to draw.")
    translator = open_translator(options.model, threads=1)
    if getattr(translator.module, "align", None) is None:
        raise InputError(
            f"{options.model}: this model has no alignment, because it has no attention to the "
            f"source, or an earlier version wrote its SavedModel."
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
        warn("no installed font has some of the characters; install a Noto Sans font.")
    print(options.output)
    return 0
