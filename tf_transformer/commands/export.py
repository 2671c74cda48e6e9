"""`tf-transformer export`: the best checkpoint of a run as a SavedModel or a CTranslate2 model."""

import argparse
import pathlib
import warnings
from typing import Any

from tf_transformer.commands.models import quiet, search_errors
from tf_transformer.commands.options import length_penalty, positive
from tf_transformer.config import DataConfig
from tf_transformer.errors import ConfigError, InputError
from tf_transformer.settings import flag
from tf_transformer.training.run_directory import RunDirectory, warn

HELP = "write a SavedModel, text in and text out, or a model of CTranslate2"
DESCRIPTION = "Writes the best checkpoint of a run as saved_models/NAME/VERSION."
_FORMATS = ("saved_model", "ctranslate2")
# What the metadata of a run says of its data.
_DATA = ("training corpus", "validation corpus", "source tokenizer", "target tokenizer")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("saved_model", metavar="saved_models/NAME")
    parser.add_argument(
        "--format", choices=_FORMATS, default=_FORMATS[0], help="default: saved_model"
    )
    parser.add_argument(
        "--beam-size",
        type=positive,
        metavar="K",
        help="hypotheses that serving_default follows (default: 1, greedy)",
    )
    parser.add_argument(
        "--length-penalty",
        type=length_penalty,
        metavar="A",
        help="how much a beam favours long translations, from 0 (default: 0.6)",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16", "int8"),
        help="of the weights and the computation of a SavedModel (default: float32); bfloat16 is "
        "half as large, and faster in large models where the processor multiplies bfloat16; int8 "
        "is about a quarter as large and several times slower on a CPU",
    )
    parser.add_argument(
        "--quantization",
        metavar="{int8,int16,float16,bfloat16}",
        help="how CTranslate2 stores weights (default: float32)",
    )
    parser.add_argument("--version", type=int, metavar="N", help="default: the next free one")
    parser.add_argument("--overwrite", action="store_true", help="replace a version that exists")


def run(options: argparse.Namespace, started: float) -> int:
    """Exports."""
    _check(options)
    precision = options.precision or "float32"
    run_directory = RunDirectory.open(options.run_dir)
    with quiet():
        from tf_transformer.training.restore import restore_model
    trained = restore_model(run_directory, "float32" if precision == "int8" else precision)
    if precision == "int8":
        with warnings.catch_warnings():  # Keras names each layer that has nothing to quantize
            warnings.simplefilter("ignore")
            trained.model.quantize("int8")
    config = run_directory.config()
    checkpoint = trained.checkpoint
    manifest = {
        "config": config.to_dict(),
        "data": {
            key: checkpoint.run_metadata[key] for key in _DATA if key in checkpoint.run_metadata
        },
        "step": checkpoint.step,
        "metrics": checkpoint.metrics,
        # Of training's validation: greedy search, in the precision of training.
        "scores": {
            name: {"score": checkpoint.metrics[name], "signature": signature}
            for name, signature in checkpoint.signatures.items()
        },
        "precision": options.quantization or precision,
    }
    export = _export_saved_model if options.format == "saved_model" else _export_ctranslate2
    print(export(trained, config.data, manifest, options))
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raises a `ConfigError` for an option that the format does not have."""
    if options.quantization and options.format != "ctranslate2":
        raise ConfigError("--quantization needs --format ctranslate2; a SavedModel: --precision.")
    if options.precision and options.format == "ctranslate2":
        raise ConfigError(
            "--precision is a SavedModel's; for --format ctranslate2: --quantization."
        )
    given = [name for name in ("beam_size", "length_penalty") if getattr(options, name) is not None]
    if given and options.format == "ctranslate2":
        named = " and ".join(map(flag, given))
        raise ConfigError(f"CTranslate2 takes the beam when it translates; omit {named}.")


def _export_saved_model(
    trained: Any, data: DataConfig, manifest: dict, options: argparse.Namespace
) -> pathlib.Path:
    from tf_transformer.export.saved_model import export_saved_model
    from tf_transformer.inference.translator import Translator

    alignment = _alignment(trained, data)
    if alignment is not None:
        manifest["alignment"] = alignment._asdict()
    search = {"beam_size": options.beam_size, "length_penalty": options.length_penalty}
    with search_errors():
        translator = Translator.from_model(
            trained.model,
            trained.source_tokenizer,
            trained.target_tokenizer,
            data.max_length,
            alignment=alignment,
            **{name: value for name, value in search.items() if value is not None},
        )
    return export_saved_model(
        translator, options.saved_model, options.version, manifest, options.overwrite
    )


def _alignment(trained: Any, data: DataConfig) -> Any:
    """The `Alignment` that validation text chooses; None where the model has no attention scores.

    An artifact is worth more than the best choice of heads: without the text it is a notice.
    """
    from tf_transformer.data.corpus import load_validation
    from tf_transformer.inference.alignment import choose_alignment

    model, *tokenizers, _ = trained
    pairs, problem = [], None
    try:
        pairs = load_validation(data)
    except InputError as error:
        problem = error
    chosen = choose_alignment(model, *tokenizers, pairs, data.max_length)
    if chosen is not None and problem is not None:
        warn(f"no attention heads are chosen for align, but all of one layer are taken: {problem}")
    return chosen


def _export_ctranslate2(
    trained: Any, data: DataConfig, manifest: dict, options: argparse.Namespace
) -> pathlib.Path:
    from tf_transformer.export.ctranslate2 import export_ctranslate2

    return export_ctranslate2(
        trained.model,
        trained.source_tokenizer,
        trained.target_tokenizer,
        options.saved_model,
        options.version,
        manifest,
        options.overwrite,
        options.quantization,
        data.max_length,
    )
