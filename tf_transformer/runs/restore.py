"""Restore the trained model and the tokenizers of a run directory."""

from typing import Any, NamedTuple

import keras

from tf_transformer.config_fields import Trait
from tf_transformer.inference.search import Search
from tf_transformer.inference.translator import Translator
from tf_transformer.models.architectures import architecture_name, build_model, with_tokenizers
from tf_transformer.models.model_configs import ModelConfig
from tf_transformer.run_config import names_with
from tf_transformer.run_tables import DataConfig
from tf_transformer.runs.checkpoints import Checkpoint, Checkpoints
from tf_transformer.runs.recipe import metric_of
from tf_transformer.runs.run_directory import RunDirectory, RunError, warn
from tf_transformer.tokenizers import GraphTokenizer, load_tokenizer

Tokenizers = tuple[GraphTokenizer, GraphTokenizer]  # source and target


class TrainedModel(NamedTuple):
    """A model with the weights of a checkpoint, and the tokenizers it was trained with."""

    model: keras.Model
    source_tokenizer: GraphTokenizer
    target_tokenizer: GraphTokenizer
    checkpoint: Checkpoint


def best_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """Return the best checkpoint of a run by its metric; None if there is none yet.

    Damaged checkpoints are skipped with a warning. If all checkpoints are damaged, a
    `CheckpointError` is raised.
    """
    checkpoints = Checkpoints(run.checkpoints_path, metric_of(run.config()))
    return next(checkpoints.intact(warn, best_first=True), None)


def restore_model(run: RunDirectory, precision: str | None = None) -> TrainedModel:
    """Build the model of a run with the weights of its best checkpoint.

    `precision` is a Keras dtype policy; None means the policy of training.
    """
    checkpoint = best_checkpoint(run)
    if checkpoint is None:
        train = run.resume_command()
        raise RunError(f"{run.checkpoints_path}: there is no checkpoint yet. Train with: {train}")
    config = run.config()
    tokenizers = restore_tokenizers(run)
    sizes = with_tokenizers(config.model, *tokenizers)
    checkpoint.require(sizes.to_dict())
    model = build_model(sizes, precision or config.training.precision)
    checkpoint.restore(model)
    return TrainedModel(model, *tokenizers, checkpoint)


def translator_of(
    data: DataConfig, model: keras.Model, *tokenizers: GraphTokenizer, **options: Any
) -> Translator:
    """Make a greedy translator that processes sources like an export of the run.

    The `options` are `threads` and `terms`; see `Translator`.
    """
    require_translator(model.config)
    return Translator.from_model(model, *tokenizers, search_of(data), **options)


def search_of(data: DataConfig) -> Search:
    """Return a greedy search that processes sources as in training.

    Lines whose tags are their own are not split into sentences, since each has only one tag.
    """
    names = (key.removeprefix("data.") for key in names_with(Trait.TRANSLATOR))
    settings = {name: getattr(data, name) for name in names}
    given = {name: value for name, value in settings.items() if value is not None}
    by_sentence = data.has_sources and not any(data.validation_tags or ())
    return Search(**given, by_sentence=by_sentence)


def require_translator(config: ModelConfig) -> None:
    """Raise a `RunError` unless models of this configuration translate."""
    if not config.translates:
        name = architecture_name(config)
        raise RunError(
            f"a model of the architecture {name} scores text and cannot translate. For perplexity: "
            f"tf-transformer evaluate RUN_DIR --text F, or --source F --reference F --perplexity"
        )


def restore_tokenizers(run: RunDirectory) -> Tokenizers:
    """Load the source and the target tokenizer of a run."""
    folder = run.tokenizers_path
    try:
        return load_tokenizer(folder / "source.model"), load_tokenizer(folder / "target.model")
    except FileNotFoundError:
        raise RunError(
            f"{folder}: a tokenizer is missing. Restore the folder from a copy; "
            f"without it the checkpoints of the run cannot be used."
        ) from None
