"""`tf-transformer export`: the best checkpoint of a run as a SavedModel or a CTranslate2 model."""

import argparse
import pathlib
import sys
import warnings
from typing import Any

from tf_transformer.commands.models import quiet, search_errors
from tf_transformer.commands.options import length_penalty, positive
from tf_transformer.config import DataConfig
from tf_transformer.errors import ConfigError, InputError
from tf_transformer.runs.run_directory import RunDirectory, warn
from tf_transformer.settings import flag

HELP = "write a SavedModel, text in and text out, or a model of CTranslate2"
DESCRIPTION = "Writes the best checkpoint of a run as saved_models/NAME/VERSION."
_FORMATS = ("saved_model", "ctranslate2")
# What the metadata of a run says of its data.
_DATA = ("training corpus", "validation corpus", "source tokenizer", "target tokenizer")
# What the manifest says of a search that neither options nor validation text have chosen.
_BY_DEFAULT = "by default, without validation text"


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
        from tf_transformer.runs.restore import require_translator, restore_model
    config = run_directory.config()
    require_translator(config.model)
    trained = restore_model(run_directory, "float32" if precision == "int8" else precision)
    if precision == "int8":
        with warnings.catch_warnings():  # Keras names each layer that has nothing to quantize
            warnings.simplefilter("ignore")
            trained.model.quantize("int8")
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
    from tf_transformer.data.corpus import load_validation
    from tf_transformer.data.parallel import ParallelText
    from tf_transformer.export.saved_model import export_saved_model
    from tf_transformer.export.versions import version_folder
    from tf_transformer.inference.alignment import choose_alignment
    from tf_transformer.inference.saved_model import SAVED_MODEL

    # Before the choices, which may take minutes.
    version_folder(SAVED_MODEL, options.saved_model, options.version, options.overwrite)
    # An artifact is worth more than the best choices: without the text there is a notice.
    validation, problem, defaults = ParallelText((), ()), None, []
    try:
        if data.has_sources:  # prompts that are empty choose nothing
            validation = load_validation(data)
    except InputError as error:
        problem = error
    model, *tokenizers, _ = trained
    alignment = choose_alignment(model, *tokenizers, validation, data.max_length)
    if alignment is not None:
        manifest["alignment"] = alignment._asdict()
        defaults.append("no attention heads are chosen for align, but all of one layer are taken")
    translator, search = _with_search(trained, data, validation, alignment, options)
    manifest["search"] = search
    if search["chosen"] == _BY_DEFAULT:
        defaults.append(
            f"no search is chosen, but a beam of {search['beam_size']} with length penalty "
            f"{search['length_penalty']:g} is taken"
        )
    if problem and defaults:
        warn(f"{', and '.join(defaults)}: {problem}")
    return export_saved_model(
        translator, options.saved_model, options.version, manifest, options.overwrite
    )


def _with_search(
    trained: Any, data: DataConfig, validation: Any, alignment: Any, options: argparse.Namespace
) -> tuple[Any, dict]:
    """A `Translator` that searches as the options or the validation text say.

    Returns:
        The translator, and what the manifest says of its search.
    """
    from tf_transformer.inference.translator import Translator
    from tf_transformer.runs.recipe import metric_of
    from tf_transformer.runs.search_tuning import (
        DEFAULT_BEAM_SIZE,
        SearchChoice,
        choose_search,
    )

    def translator_with(search: SearchChoice) -> Translator:
        return Translator.from_model(
            trained.model,
            trained.source_tokenizer,
            trained.target_tokenizer,
            data.max_length,
            search.beam_size,
            search.length_penalty,
            alignment=alignment,
            fold_capitals=data.fold_capitals or False,
            max_length_ratio=data.max_length_ratio,
            by_sentence=data.has_sources,
            # TensorFlow numbers what it makes, and the names in a SavedModel have these numbers:
            # with several threads two exports of one run would not have the same bytes.
            threads=1,
        )

    largest = trained.target_tokenizer.vocab_size
    search = SearchChoice(options.beam_size or min(DEFAULT_BEAM_SIZE, largest))
    if options.length_penalty is not None:
        search = search._replace(length_penalty=options.length_penalty)
    with search_errors():
        translator = translator_with(search)
        if options.length_penalty is not None or options.beam_size == 1:
            chosen = "given" if options.beam_size is not None else "beam_size by default"
        elif not validation:
            chosen = _BY_DEFAULT
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
