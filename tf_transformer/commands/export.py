"""Write a SavedModel that translates text, or a model for CTranslate2.

Write the best checkpoint of a run as saved_models/NAME/VERSION.

tf-transformer export runs/de_en saved_models/de_en
"""

import dataclasses
import pathlib
from typing import Any, Literal

from pydantic import PositiveInt

from tf_transformer.commands.options import Checked, LengthPenalty, argument, option
from tf_transformer.errors import ConfigError, InputError
from tf_transformer.machine import quiet
from tf_transformer.run_config import DataConfig, RunConfig, flag
from tf_transformer.runs.run_directory import RunDirectory, say, warn

# The keys of a run's metadata that describe its data.
_DATA = ("training corpus", "validation corpus", "source tokenizer", "target tokenizer")


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
        "precision of a SavedModel's weights and computation (default: float32); bfloat16 nearly "
        "halves its size, and is faster for large models on processors that multiply bfloat16",
    )
    quantization: Literal["int8", "int16", "float16", "bfloat16"] | None = option(
        None, "how CTranslate2 stores weights (default: float32)"
    )
    version: int | None = option(None, "version number (default: the next free one)")
    overwrite: bool = option(False, "replace an existing version")


def run(options: Options) -> int:
    """Export the best checkpoint of a run."""
    is_saved_model = options.format == "saved_model"
    of_others = ["quantization"] if is_saved_model else ["precision", "beam_size", "length_penalty"]
    if given := [flag(name) for name in of_others if getattr(options, name) is not None]:
        raise ConfigError(f"--format {options.format} does not have {', '.join(given)}; omit it.")
    if options.overwrite and options.version is None:
        raise ConfigError("--overwrite replaces a version. Give its number with --version.")
    precision = options.precision or "float32"
    run_directory = RunDirectory.open(options.run_dir)
    with quiet():
        from tf_transformer.models.architectures import architecture_name
        from tf_transformer.runs.restore import require_translator, restore_model
    config = run_directory.config()
    require_translator(config.model)
    # `freeze` rounds the weights, after it has folded them.
    is_frozen = is_saved_model and architecture_name(config.model) == "transformer"
    trained = restore_model(run_directory, "float32" if is_frozen else precision)
    checkpoint, metadata = trained.checkpoint, trained.checkpoint.run_metadata
    if run_directory.is_in_training():
        warn(
            f"{options.run_dir}: is still being trained; exporting the best checkpoint so far, of "
            f"step {checkpoint.step:,}."
        )
    manifest = {
        "config": config.to_dict(),
        "data": {key: metadata[key] for key in _DATA if key in metadata},
        "step": checkpoint.step,
        # The model may be the average of several checkpoints.
        "averaged_steps": metadata.get("averaged steps", []),
        "metrics": checkpoint.metrics,
        # From validation during training: greedy search, in the precision of training.
        "scores": {
            name: {"score": checkpoint.metrics[name], "signature": signature}
            for name, signature in checkpoint.signatures.items()
        },
        "precision": options.quantization or precision,
        "languages": _languages(config.data),
    }
    if is_saved_model:
        print(_export_saved_model(trained, config, manifest, options))
        return 0
    if tag := config.data.source_tag:
        warn(f"CTranslate2's files cannot hold the tag {tag}; put it before a source's tokens.")
    from tf_transformer.export.ctranslate2 import export_ctranslate2

    model, *tokenizers, _ = trained
    target = (options.saved_model, options.version, manifest, options.overwrite)
    max_length = config.data.max_length
    print(export_ctranslate2(model, *tokenizers, *target, options.quantization, max_length))
    return 0


def _languages(data: DataConfig) -> list[str]:
    """Return the ends of the names of the first source and target files, such as `de`."""
    if data.corpus == "phrasebook":
        return ["de", "en"]
    paths = data.paths("train")[0] if data.corpus == "text" else ()
    return [pathlib.Path(path.removesuffix(".gz")).suffix[1:] for path in paths]


def _export_saved_model(
    trained: Any, config: RunConfig, manifest: dict, options: Options
) -> pathlib.Path:
    from tf_transformer.data.corpus import load_validation
    from tf_transformer.data.mixture import TaggedText
    from tf_transformer.data.text import ParallelText
    from tf_transformer.export.manifest import version_folder
    from tf_transformer.export.saved_model import export_saved_model
    from tf_transformer.inference.alignment import choose_alignment
    from tf_transformer.inference.folding import freeze
    from tf_transformer.inference.translator import Translator
    from tf_transformer.inference.versions import SAVED_MODEL
    from tf_transformer.runs.recipe import metric_of
    from tf_transformer.runs.restore import search_of
    from tf_transformer.runs.search_tuning import SearchChoice, choose_search

    # Raise errors about the folder before the choices, which may take minutes.
    version_folder(SAVED_MODEL, options.saved_model, options.version, options.overwrite)
    # Without validation text the defaults are exported, with a notice.
    validation, problem = ParallelText((), ()), None
    summary = RunDirectory.open(options.run_dir).summary()
    try:
        if config.data.has_sources:  # empty prompts cannot choose a search
            validation = load_validation(config.data, summary)
    except InputError as error:
        problem = error
    model, *tokenizers, _ = trained
    settings, max_length = search_of(config.data), config.data.max_length
    expected = manifest["data"].get("validation corpus")
    if validation and expected not in (None, validation.fingerprint):
        # Lines that are held out now may have been trained.
        validation, problem = ParallelText((), ()), "it has changed since the training."
    precision = options.precision or "float32"
    model = freeze(model, max_length, precision)
    tagged = TaggedText(validation, config.data.source_tag or "")
    alignment = choose_alignment(model, *tokenizers, tagged, max_length)
    settings = dataclasses.replace(settings, alignment=alignment)
    if alignment is not None:
        manifest["alignment"] = alignment._asdict()
    given = options.model_dump(include={"beam_size", "length_penalty"}, exclude_none=True)
    search = SearchChoice(**given)

    def translator_with(search: SearchChoice) -> Translator:
        sizes = {"beam_size": search.beam_size, "length_penalty": search.length_penalty}
        # TensorFlow numbers the objects that it makes, and names in a SavedModel contain these
        # numbers. With several threads, two exports of one run would have different bytes.
        complete = dataclasses.replace(settings, **sizes)
        return Translator.from_model(model, *tokenizers, complete, threads=1)

    translator = translator_with(search)
    if "length_penalty" in given or search.beam_size == 1:
        chosen = "given" if "beam_size" in given else "beam_size by default"
    elif not validation:
        chosen = "by default, without validation text"
    else:
        say("Choosing the search on the validation text.")
        metric = metric_of(config)
        search = choose_search(translator, validation, search.beam_size, metric=metric)
        search = search._replace(**given)
        chosen = f"{'length_penalty ' if given else ''}on validation text"
        say(str(search))
        translator = translator_with(search)
    manifest["search"] = {**search._asdict(), "chosen": chosen}
    if problem:
        warn(f"alignment and search were not chosen on validation text: {problem}")
    return export_saved_model(
        translator, options.saved_model, options.version, manifest, options.overwrite
    )
