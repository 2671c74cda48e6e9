"""From a run directory to a trained model."""

from typing import NamedTuple

import keras

from tf_transformer.config import DataConfig
from tf_transformer.inference.graph import Search
from tf_transformer.inference.translator import Translator
from tf_transformer.models.architectures import (
    ARCHITECTURES,
    architecture_name,
    build_model,
    with_tokenizers,
)
from tf_transformer.models.configs import ModelConfig
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training.checkpoints import Checkpoint, Checkpoints
from tf_transformer.training.criterion import Criterion
from tf_transformer.training.run_directory import RunDirectory, RunError, warn


class TrainedModel(NamedTuple):
    """A model with the weights of a checkpoint, and the tokenizers it was trained with."""

    model: keras.Model
    source_tokenizer: SentencePieceTokenizer
    target_tokenizer: SentencePieceTokenizer
    checkpoint: Checkpoint


def best_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """The checkpoint of a run that is best on validation text, or the average of its last.

    Checkpoints that are damaged are skipped, with a warning.

    Raises:
        CheckpointError: There are checkpoints, and none of them is intact.
    """
    best = Checkpoints(run.checkpoints_path).best_intact(warn)
    if not run.average_path.is_dir():
        return best
    average = next(Checkpoints(run.average_path).intact(warn), None)
    if average is None or best is None:
        return average or best
    criterion = Criterion.of(run.config())
    value, record = (c.metrics.get(criterion.metric) for c in (average, best))
    is_better = record is None or criterion.rank(value) > criterion.rank(record)
    return average if is_better else best


def restore_model(run: RunDirectory, precision: str | None = None) -> TrainedModel:
    """The model of a run with the weights of its best checkpoint.

    Args:
        run: The run directory.
        precision: A Keras dtype policy; None is that of training.

    Raises:
        RunError: There is no checkpoint.
        CheckpointError: None can be read, or it is of another model.
    """
    checkpoint = best_checkpoint(run)
    if checkpoint is None:
        raise RunError(
            f"{run.checkpoints_path}: there is no checkpoint yet. "
            f"Train with: {run.resume_command()}"
        )
    config = run.config()
    tokenizers = restore_tokenizers(run)
    sizes = with_tokenizers(config.model, *tokenizers)
    checkpoint.require(sizes.to_dict())
    model = build_model(sizes, precision or config.training.precision)
    checkpoint.restore(model)
    return TrainedModel(model, *tokenizers, checkpoint)


def translator_of(
    data: DataConfig,
    model: keras.Model,
    source_tokenizer: SentencePieceTokenizer,
    target_tokenizer: SentencePieceTokenizer,
    *,
    xla: bool = False,
    threads: int | None = None,
) -> Translator:
    """A greedy translator of a model that reads sources as an export of its run does.

    Args:
        data: The table `[data]` of the run.
        model: The model of a run.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.
        xla: As in `Translator`.
        threads: As in `Translator`.

    Raises:
        RunError: The model only scores text.
    """
    require_translator(model.config)
    return Translator.from_model(
        model, source_tokenizer, target_tokenizer, search_of(data), xla=xla, threads=threads
    )


def search_of(data: DataConfig) -> Search:
    """The greedy search of a model that reads sources as in training."""
    return Search(
        max_length=data.max_length,
        max_length_ratio=data.max_length_ratio,
        fold_capitals=data.fold_capitals or False,
        by_sentence=data.has_sources,
    )


def require_translator(config: ModelConfig) -> None:
    """Raises a `RunError` unless models of this configuration translate."""
    name = architecture_name(config)
    if not ARCHITECTURES[name].translates:
        raise RunError(
            f"a model of the architecture {name} scores text and cannot translate. Its perplexity: "
            f"tf-transformer evaluate RUN_DIR --text F, or --source F --reference F --perplexity"
        )


def restore_tokenizers(
    run: RunDirectory,
) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
    """The source and the target tokenizer of a run.

    Raises:
        RunError: They are missing.
        TokenizerError: One of them is damaged.
    """
    try:
        source, target = (
            SentencePieceTokenizer.load(run.tokenizers_path / f"{side}.model")
            for side in ("source", "target")
        )
    except FileNotFoundError:
        raise RunError(
            f"{run.tokenizers_path}: a tokenizer is missing. Restore the folder from a copy; "
            f"without it the checkpoints of the run cannot be used."
        ) from None
    return source, target
