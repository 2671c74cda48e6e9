"""Write a SavedModel that translates text, or a model for CTranslate2.

Write the best checkpoint of a run as saved_models/NAME/VERSION.

tf-transformer export runs/de_en saved_models/de_en
"""

from typing import Literal

from pydantic import PositiveInt

from tf_transformer.commands.options import Checked, LengthPenalty, argument, option
from tf_transformer.machine import quiet


class Options(Checked):
    """The options of `export`."""

    run_dir: str = argument("RUN_DIR")
    saved_model: str = argument("saved_models/NAME")
    format: Literal["saved_model", "ctranslate2"] = option("saved_model", "format to write")
    beam_size: PositiveInt | None = option(
        None,
        "beam size of serving_default; 1 is greedy search (default: 4, or 1 if that translates the "
        "validation text as well and no --length-penalty is given)",
        "K",
    )
    length_penalty: LengthPenalty | None = option(
        None,
        "how much a beam favours long translations, from 0 to 10 (default: the best of a few "
        "values on the validation text)",
        "A",
    )
    precision: Literal["float32", "bfloat16"] | None = option(
        None,
        "precision of a SavedModel's weights and computation (default: float32); bfloat16 "
        "halves the size of the weights, and is faster for large models on processors that "
        "multiply bfloat16",
    )
    quantization: Literal["int8", "int16", "float16", "bfloat16"] | None = option(
        None, "how CTranslate2 stores weights (default: float32)"
    )
    version: int | None = option(None, "version number (default: the next free one)")
    overwrite: bool = option(False, "replace an existing version")


def run(options: Options) -> int:
    """Export the best checkpoint of a run."""
    with quiet():
        from tf_transformer.export.run_export import export_run
    paths = options.run_dir, options.saved_model
    print(export_run(*paths, **options.model_dump(exclude={"run_dir", "saved_model"})))
    return 0
