"""The export of a trained run, with the precision and the search that suit it."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

from tf_transformer.config_fields import flag
from tf_transformer.data.corpus import load_validation
from tf_transformer.data.marks import Marks
from tf_transformer.data.text import ParallelText
from tf_transformer.errors import ConfigError, InputError
from tf_transformer.export.calibration import calibrate
from tf_transformer.export.ctranslate2 import export_ctranslate2
from tf_transformer.export.folding import freeze
from tf_transformer.export.manifest import version_folder
from tf_transformer.export.saved_model import export_saved_model
from tf_transformer.export.search_tuning import SearchChoice, choose_search
from tf_transformer.inference.graph import ExportTranslator
from tf_transformer.inference.translator import Translator
from tf_transformer.inference.versions import CTRANSLATE2, SAVED_MODEL
from tf_transformer.run_config import RunConfig
from tf_transformer.run_tables import DataConfig
from tf_transformer.runs.recipe import metric_of
from tf_transformer.runs.restore import TrainedModel, require_translator, restore_model, search_of
from tf_transformer.runs.run_directory import RunDirectory, say, warn

_FORMATS = {"saved_model": SAVED_MODEL, "ctranslate2": CTRANSLATE2}
# The keys of a run's metadata that describe its data.
_DATA = ("training corpus", "validation corpus", "source tokenizer", "target tokenizer")


def export_run(
    run_directory: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    format: Literal["saved_model", "ctranslate2"] = "saved_model",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    quantization: Literal["int8", "int16", "float16", "bfloat16"] | None = None,
    version: int | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Write the best checkpoint of a run as `path/VERSION`, as `tf-transformer export` does.

    The search of a SavedModel is chosen on the validation text of the run.

    Args:
        run_directory: The run.
        path, version, overwrite: See `version_folder`.
        format: `"saved_model"`, or `"ctranslate2"` for CTranslate2's files.
        beam_size: Beam size of the SavedModel's search; 1 is greedy search. None means 4, or 1 if
            that translates the validation text as well and no `length_penalty` is given.
        length_penalty: See `beam_score`; None means the best of a few values.
        precision: The precision of a SavedModel's weights and products; None means float32.
        quantization: How CTranslate2 stores weights, see `export_ctranslate2`.

    Returns:
        The folder `path/VERSION`.

    Raises:
        RunError: There is no run, it has no checkpoint, or its model does not translate.
        ConfigError: An argument is not one of the format's.
        ExportError: See `export_saved_model` and `export_ctranslate2`.

    Example:
        >>> path = tt.export_run(run_dir, folder / "demo", beam_size=1)
        >>> translator = tt.Translator.load(path)
        >>> translator.search["beam_size"]
        1
    """
    if format not in _FORMATS:
        raise ConfigError(f"format={format!r} is none of {', '.join(_FORMATS)}.")
    search = {"beam_size": beam_size, "length_penalty": length_penalty}
    others = {"quantization": quantization}
    if format == "ctranslate2":
        others = {"precision": precision, **search}
    if given := [flag(name) for name, value in others.items() if value is not None]:
        raise ConfigError(f"--format {format} does not have {', '.join(given)}; omit it.")
    if overwrite and version is None:
        raise ConfigError("--overwrite replaces a version. Give its number with --version.")
    run, precision = RunDirectory.open(run_directory), precision or "float32"
    config = run.config()
    require_translator(config.model)
    # Raise errors about the folder before the choices, which may take minutes.
    file_format = _FORMATS[format]
    version_folder(file_format, path, version, overwrite)
    # `freeze` rounds the weights of a Transformer, after it has folded them.
    is_folded = config.architecture == "transformer"
    trained = restore_model(run, "float32" if is_folded else precision)
    manifest = _manifest(config, trained, quantization or precision)
    if format == "saved_model":
        given = {name: value for name, value in search.items() if value is not None}
        module, choices = _tuned_translator(run, trained, precision, given)
        return export_saved_model(module, path, version, {**manifest, **choices}, overwrite)
    if tag := config.data.source_tag:
        warn(f"CTranslate2's files cannot hold the tag {tag}; put it before a source's tokens.")
    if Marks.of(trained.source_tokenizer, trained.target_tokenizer):
        warn("CTranslate2's files lack marks: placeholders and tags may be lost there.")
    model, *tokenizers, _ = trained
    return export_ctranslate2(
        model,
        *tokenizers,
        path,
        version=version,
        manifest=manifest,
        overwrite=overwrite,
        quantization=quantization,
        max_length=config.data.max_length,
    )


def _manifest(config: RunConfig, trained: TrainedModel, precision: str) -> dict[str, Any]:
    checkpoint, metadata = trained.checkpoint, trained.checkpoint.run_metadata
    return {
        "config": config.to_dict(),
        "data": {key: metadata[key] for key in _DATA if key in metadata},
        "step": checkpoint.step,
        # From validation during training: greedy search, in the precision of training.
        "metrics": checkpoint.metrics,
        "signatures": dict(checkpoint.signatures),
        "precision": precision,
        "languages": _languages(config.data),
    }


def _languages(data: DataConfig) -> list[str]:
    """Return the ends of the names of the first source and target files, such as `de`."""
    if data.corpus == "phrasebook":
        return ["de", "en"]
    paths = data.paths("train")[0] if data.corpus == "text" else ()
    return [pathlib.Path(path.removesuffix(".gz")).suffix[1:] for path in paths]


def _tuned_translator(
    run: RunDirectory, trained: TrainedModel, precision: str, given: Mapping[str, Any]
) -> tuple[ExportTranslator, dict[str, Any]]:
    """Choose what is not `given` of the search; return it for the manifest, too."""
    config = run.config()
    data, max_length = config.data, config.data.max_length
    validation = _validation(run, data, trained.checkpoint.run_metadata.get("validation corpus"))
    model, *tokenizers, _ = trained
    model = freeze(model, max_length, precision)
    choice = SearchChoice(**given)
    search = dataclasses.replace(search_of(data), beam_size=choice.beam_size)
    # TensorFlow numbers the objects that it makes, and names in a SavedModel contain these numbers.
    # With several threads, two exports of one run would have different bytes.
    # Make it even if it is not used below: it refuses a wrong beam size before the choice begins.
    translator = Translator.from_model(model, *tokenizers, search, threads=1)
    if "length_penalty" in given or choice.beam_size == 1:
        chosen = "given" if "beam_size" in given else "beam_size by default"
    elif not validation:
        chosen = "by default, without validation text"
    else:
        say("Choosing the search on the validation text.")
        metric = metric_of(config)
        choice = choose_search(translator, validation, choice.beam_size, metric=metric)
        choice = choice._replace(**given)
        chosen = f"{'length_penalty ' if given else ''}on validation text"
        say(str(choice))
    choices = {"search": {**choice._asdict(), "chosen": chosen}}
    options = {"beam_size": choice.beam_size, "length_penalty": choice.length_penalty}
    if usual := calibrate(translator, validation, **options):
        choices["usual"] = usual._asdict()
    search = dataclasses.replace(search, **options, usual=usual)
    return ExportTranslator(model, *tokenizers, search), choices


def _validation(run: RunDirectory, data: DataConfig, fingerprint: str | None) -> ParallelText:
    """Return the first validation text of a run; without it, warn and return an empty text."""
    try:
        if data.has_sources:  # empty prompts cannot choose a search
            text = load_validation(data, run.summary())
            if fingerprint not in (None, text.fingerprint):
                # Lines that are held out now may have been trained.
                raise InputError("it has changed since the training.")
            return text
    except InputError as problem:
        warn(f"no validation text chooses the search or calibrates its flags: {problem}")
    return ParallelText((), ())
