"""A model of another engine, ready to become a run directory."""

import os
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tf_transformer.files import atomic_folder
from tf_transformer.importing.tensors import ForeignModelError, existing
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.models.base import SequenceModel
from tf_transformer.models.model_configs import AttentionConfig
from tf_transformer.run_config import RunConfig
from tf_transformer.run_tables import DataConfig, TokenizerConfig
from tf_transformer.runs.checkpoints import Checkpoints, tokenizer_metadata
from tf_transformer.runs.run_directory import RunDirectory, RunError
from tf_transformer.tokenizers import GraphTokenizer, VocabularyTokenizer, is_token
from tf_transformer.tokenizers.sentencepiece import library_of, naming
from tf_transformer.tokenizers.vocabulary import tags_in, vocabulary_model


class ForeignModel(NamedTuple):
    """A model that was read from the files of another engine.

    Attributes:
        config: The configuration; the tokenizers give the sizes of the vocabularies.
        source_tokenizer, target_tokenizer: The tokenizers.
        fill: A function that gives a model of this configuration its weights.
        allow_unknown: Whether the engine produces the token of unknown subwords.
        max_length: The largest number of tokens in a sentence.
        max_length_ratio: The engine's limit of a translation's tokens for each token of its source.
        files: The files of settings and weights that were read.
        notes: Lines about what an import does not keep.
    """

    config: AttentionConfig
    source_tokenizer: GraphTokenizer
    target_tokenizer: GraphTokenizer
    fill: Callable[[Any], None]
    allow_unknown: bool
    max_length: int
    max_length_ratio: float
    files: Sequence[pathlib.Path]
    notes: Sequence[str] = ()


def subwords_of(model: bytes) -> list[str]:
    """Return the subwords of a SentencePiece model in the order of their ids."""
    library = library_of(model)
    return [library.id_to_piece(index) for index in range(library.vocab_size())]


def table_tokenizer(
    splitter: pathlib.Path,
    table: pathlib.Path,
    subwords: Sequence[str],
    special: Mapping[str, str],
    tags: Collection[str] = (),
) -> VocabularyTokenizer:
    """Return a tokenizer, if its SentencePiece model and the table of subwords fit together.

    Args:
        splitter: The file of the SentencePiece model.
        table: The file of the table, for messages.
        subwords: The subwords in the order of their ids.
        special, tags: See `vocabulary_model`.
    """
    if missing := [subword for subword in special.values() if subword not in subwords]:
        raise ForeignModelError(f"{table}: has no subword {missing[0]}.")
    content = existing(splitter).read_bytes()
    with naming(splitter):
        known = subwords_of(content)
        model = vocabulary_model(subwords, content, special, tags)
        tokenizer = VocabularyTokenizer(model, content)
    if len(set(known).intersection(subwords)) < len(known) / 2:
        raise ForeignModelError(
            f"{table}: has less than half of the subwords of {splitter.name}. They belong to "
            f"different models."
        )
    return tokenizer


def write_run(path: str, model: ForeignModel, origin: str, tag: str | None = None) -> SequenceModel:
    """Write a model as the best checkpoint of a new run directory, atomically; return the model.

    `tag` will stand in front of every source.

    Raises:
        RunError: The path exists already.
        ForeignModelError: A weight is missing or has the wrong size, or the tag is unknown.
    """
    if os.path.lexists(path):
        raise RunError(f"{path}: exists already. Give the path of a new folder.")
    tokenizers = model.source_tokenizer, model.target_tokenizer
    if tag is not None and not is_token(model.source_tokenizer, tag):
        subwords = model.source_tokenizer.subwords(range(model.source_tokenizer.vocab_size))
        tags = (tag for tag in sorted(tags_in(subwords)) if is_token(model.source_tokenizer, tag))
        known = ", ".join(tags) or "none"
        raise ForeignModelError(f"{origin}: has no tag {tag}. The tags of its vocabulary: {known}.")
    config = with_tokenizers(model.config, *tokenizers)
    built = build_model(config)
    model.fill(built)
    data = DataConfig(
        corpus="none",
        max_length=model.max_length,
        max_length_ratio=model.max_length_ratio,
        batch_tokens=max(4096, model.max_length),
        source_tag=tag,
        allow_unknown=model.allow_unknown,
        repair_loops=False,  # as the engine translates
    )
    tokenizer = TokenizerConfig(joint=config.tie_embeddings, normalization="none")  # of ours
    metadata = {**built.config.to_dict(), **tokenizer_metadata(*tokenizers)}
    with atomic_folder(pathlib.Path(path)) as folder:
        run = RunDirectory(folder)
        Checkpoints(run.checkpoints_path).write(built, 0, {}, run_metadata=metadata)
        run.begin(RunConfig(data, tokenizer, built.config), tokenizers)
    return built
