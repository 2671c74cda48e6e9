"""`tf-transformer export`: the best checkpoint of a run as a SavedModel or a CTranslate2 model."""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tf_transformer.commands.models import quiet, search_errors
from tf_transformer.commands.options import length_penalty, positive
from tf_transformer.config import DataConfig, flag
from tf_transformer.errors import ConfigError, InputError
from tf_transformer.runs.run_directory import RunDirectory, warn

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
        help="hypotheses that serving_default follows, 1 is greedy (default: 4, or 1 where "
        "validation text is translated better so)",
    )
    parser.add_argument(
        "--length-penalty",
        type=length_penalty,
        metavar="A",
        help="how much a beam favours long translations, from 0 (default: the best of a few on "
        "validation text)",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        help="of the weights and the computation of a SavedModel (default: float32); bfloat16 is "
        "half as large, and faster in large models where the processor multiplies bfloat16",
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
        from tf_transformer.runs.restore import require_translator, restore_model
    config = run_directory.config()
    require_translator(config.model)
    trained = restore_model(run_directory, precision)
    checkpoint = trained.checkpoint
    if run_directory.is_in_training():
        warn(
            f"{options.run_dir}: is still being trained; exporting the best checkpoint so far, of "
            f"step {checkpoint.step:,}."
        )
    manifest = {
        "config": config.to_dict(),
        "data": {
            key: checkpoint.run_metadata[key] for key in _DATA if key in checkpoint.run_metadata
        },
        "step": checkpoint.step,
        # The model may be the average of several checkpoints.
        "averaged_steps": checkpoint.run_metadata.get("averaged steps", []),
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
    names = ("precision", "beam_size", "length_penalty")
    if options.format == "saved_model":
        names = ("quantization",)
    if given := [flag(name) for name in names if getattr(options, name) is not None]:
        raise ConfigError(f"--format {options.format} does not have {', '.join(given)}; omit it.")


def _export_saved_model(
    trained: Any, data: DataConfig, manifest: dict, options: argparse.Namespace
) -> pathlib.Path:
    from tf_transformer.data.corpus import load_validation
    from tf_transformer.data.text import ParallelText
    from tf_transformer.export.manifest import version_folder
    from tf_transformer.export.saved_model import export_saved_model
    from tf_transformer.inference.alignment import choose_alignment
    from tf_transformer.inference.translator import Translator
    from tf_transformer.inference.versions import SAVED_MODEL
    from tf_transformer.runs.restore import search_of

    # Before the choices, which may take minutes.
    version_folder(SAVED_MODEL, options.saved_model, options.version, options.overwrite)
    # Without validation text the defaults are exported, with a notice.
    validation, problem = ParallelText((), ()), None
    try:
        if data.has_sources:  # prompts that are empty choose nothing
            validation = load_validation(data)
    except InputError as error:
        problem = error
    model, *tokenizers, _ = trained
    alignment = choose_alignment(model, *tokenizers, validation, data.max_length)
    if alignment is not None:
        manifest["alignment"] = alignment._asdict()
    search = dataclasses.replace(search_of(data), alignment=alignment)

    def translator_with(chosen: Any) -> Any:
        beam = dataclasses.replace(
            search, beam_size=chosen.beam_size, length_penalty=chosen.length_penalty
        )
        # TensorFlow numbers what it makes, and the names in a SavedModel have these numbers: with
        # several threads two exports of one run would not have the same bytes.
        return Translator.from_model(model, *tokenizers, beam, threads=1)

    with search_errors():
        translator, manifest["search"] = _chosen(translator_with, validation, options)
    if problem:
        warn(f"alignment and search were not chosen on validation text: {problem}")
    return export_saved_model(
        translator, options.saved_model, options.version, manifest, options.overwrite
    )


def _chosen(
    translator_with: Callable[[Any], Any], validation: Sequence, options: argparse.Namespace
) -> tuple[Any, dict]:
    """Chooses the search by the options or the validation text.

    Returns:
        The translator that searches so, and what the manifest says of the search.
    """
    from tf_transformer.runs.recipe import metric_of
    from tf_transformer.runs.search_tuning import SearchChoice, choose_search

    search = SearchChoice()
    if options.beam_size is not None:
        search = search._replace(beam_size=options.beam_size)
    if options.length_penalty is not None:
        search = search._replace(length_penalty=options.length_penalty)
    translator = translator_with(search)
    if options.length_penalty is not None or options.beam_size == 1:
        chosen = "given" if options.beam_size is not None else "beam_size by default"
    elif not validation:
        chosen = "by default, without validation text"
    else:
        print("Choosing the search on the validation text.", file=sys.stderr)
        metric = metric_of(RunDirectory.open(options.run_dir).config())
        search = choose_search(translator, validation, search.beam_size, metric=metric)
        chosen = "on validation text"
        if options.beam_size is not None:
            search = search._replace(beam_size=options.beam_size)
            chosen = "length_penalty on validation text"
        print(search, file=sys.stderr)
        translator = translator_with(search)
    scores = [each._asdict() for each in search.scores]
    return translator, {**search._asdict(), "scores": scores, "chosen": chosen}


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
