"""A model of another engine, ready to become a run directory."""

import os
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import yaml
from pydantic import ValidationError

from tf_transformer.config import DataConfig, RunConfig, TokenizerConfig
from tf_transformer.files import atomic_folder
from tf_transformer.importing.tensors import ForeignModelError
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.models.base import SequenceModel
from tf_transformer.models.configs import AttentionConfig, TransformerConfig
from tf_transformer.runs.checkpoints import Checkpoints, tokenizer_metadata
from tf_transformer.runs.run_directory import RunDirectory, RunError
from tf_transformer.runs.trimming import IMPORTED, trim_to
from tf_transformer.tokenizers import GraphTokenizer, VocabularyTokenizer, is_token
from tf_transformer.tokenizers.sentencepiece import library_of, naming
from tf_transformer.tokenizers.subset import used_ids
from tf_transformer.tokenizers.vocabulary import tags_in, vocabulary_model

# A bias that no other logit outweighs. It is finite, so that sums and half precision stay exact.
NEVER = -1e4


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
    files: Sequence[pathlib.Path] = ()
    notes: Sequence[str] = ()


def existing(path: pathlib.Path) -> pathlib.Path:
    """Return the path of a file, or raise a `ForeignModelError` if the file is missing."""
    if not path.is_file():
        raise ForeignModelError(f"{path}: is missing. Copy it into the folder.")
    return path


def read_yaml(
    path: pathlib.Path, loader: type = yaml.SafeLoader, content: str | bytes | None = None
) -> dict[str, Any]:
    """Return the table of a YAML file, or that of a text in the file `path`."""
    content = existing(path).read_bytes() if content is None else content
    try:
        return dict(yaml.load(content, loader))
    except (yaml.YAMLError, ValueError, TypeError):
        raise ForeignModelError(f"{path}: is no table of settings in YAML.") from None


def by_id(path: pathlib.Path, ids: Mapping[str, Any]) -> list[str]:
    """Return subwords in the order of their ids; messages name the path of the table."""
    subwords = {int(index): subword for subword, index in ids.items()}
    if sorted(subwords) != list(range(len(ids))):
        raise ForeignModelError(f"{path}: does not give each subword an id of its own from 0 on.")
    return [subwords[index] for index in range(len(ids))]


def config_of(
    path: pathlib.Path,
    theirs: Mapping[str, Any],
    names: Mapping[str, str],
    fixed: Mapping[str, Sequence[Any]],
    kind: type[AttentionConfig] = TransformerConfig,
    **settings: Any,
) -> AttentionConfig:
    """Return the configuration of a model.

    Args:
        path: The file of the foreign settings, for messages.
        theirs: The foreign settings.
        names: The names of foreign settings, by our names.
        fixed: The values of foreign settings that our model computes, the usual one first.
        kind: The class of the configuration.
        **settings: Other settings of ours.
    """
    for name, values in fixed.items():
        if theirs.get(name, values[0]) not in values:
            raise ForeignModelError(
                f"{path}: {name} is {theirs[name]!r}; only {values[0]!r} can be imported."
            )
    if missing := [name for name in names.values() if name not in theirs]:
        raise ForeignModelError(f"{path}: lacks the setting {missing[0]!r}. Download it again.")
    try:
        return kind(**{ours: theirs[name] for ours, name in names.items()}, **settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = names.get(str(first["loc"][-1]) if first["loc"] else "", "a setting")
        raise ForeignModelError(f"{path}: {name}: {first['msg']}.") from None


def not_carried_over(path: pathlib.Path, settings: Mapping[str, Any]) -> list[str]:
    """Return a line about settings of a search that an import drops, unless all are neutral."""
    neutral = (None, False, 0, 1, "", "0", "1", "false", [], {})
    lost = [f"{name}={value}" for name, value in settings.items() if value not in neutral]
    return [f"Not carried over from {path}: {', '.join(lost)}."] if lost else []


def put(variables: Sequence[Any], arrays: Sequence[np.ndarray], name: str) -> None:
    """Assign arrays to variables; `name` is the foreign one, for messages."""
    for variable, array in zip(variables, arrays, strict=True):
        if variable.shape != array.shape:
            raise ForeignModelError(
                f"{name} has the size {array.shape}, but the configuration of the model needs "
                f"{tuple(variable.shape)}. Files of different models are mixed."
            )
        variable.assign(array)


def put_stack(
    stack: Any,
    parts: Mapping[str, Sequence[str]],
    weights_of: Callable[[str, int, str], Sequence[np.ndarray]],
) -> None:
    """Assign the weights of all layers of a stack.

    Args:
        stack: An `Encoder` or a `Decoder`.
        parts: The foreign names of each part of a layer, such as `self_residual.norm`; projections
            with several are joined in this order. Cross-attention is that of a decoder.
        weights_of: Returns kernel (inputs, outputs) and bias, or scale and bias of a norm, given
            the name of the stack, the number of a layer and a foreign name.
    """
    for index, layer in enumerate(stack.layers):
        for part, names in parts.items():
            if part.startswith("cross_") and not hasattr(layer, "cross_attention"):
                continue
            pairs = [weights_of(stack.name, index, name) for name in names]
            arrays = [np.concatenate(arrays, axis=-1) for arrays in zip(*pairs, strict=True)]
            put(attrgetter(part)(layer).weights, arrays, f"layer {index}, {names[0]}")


def subwords_of(model: bytes) -> list[str]:
    """Return the subwords of a SentencePiece model in the order of their ids."""
    library = library_of(model)
    return [library.id_to_piece(index) for index in range(library.vocab_size())]


def table_tokenizer(
    splitter: pathlib.Path,
    table: pathlib.Path,
    subwords: Sequence[str],
    has_end: bool = True,
    tags: Collection[str] = (),
    **special: str,
) -> VocabularyTokenizer:
    """Return a tokenizer, if its SentencePiece model and the table of subwords fit together.

    Args:
        splitter: The file of the SentencePiece model.
        table: The file of the table, for messages.
        subwords: The subwords in the order of their ids.
        has_end, tags, **special: See `vocabulary_model`.
    """
    if missing := [subword for subword in special.values() if subword not in subwords]:
        raise ForeignModelError(f"{table}: has no subword {missing[0]}.")
    content = existing(splitter).read_bytes()
    with naming(splitter, ForeignModelError):
        known = subwords_of(content)
        model = vocabulary_model(subwords, content, **special, has_end=has_end, tags=tags)
        tokenizer = VocabularyTokenizer(model, content)
    if len(set(known).intersection(subwords)) < len(known) / 2:
        raise ForeignModelError(
            f"{table}: has less than half of the subwords of {splitter.name}. They belong to "
            f"different models."
        )
    return tokenizer


def write_run(
    path: str | os.PathLike[str],
    model: ForeignModel,
    origin: str,
    tag: str | None = None,
    keep: Sequence[str] = (),
) -> SequenceModel:
    """Write a model as the best checkpoint of a new run directory, atomically; return the model.

    `tag` will stand in front of every source. If there are texts to `keep`, the model has only the
    subwords that these need.

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
    if keep:
        used = [used_ids(tokenizer, keep) for tokenizer in tokenizers]
        built, tokenizers = trim_to(built, tokenizers, used, (keep, keep))
    data = DataConfig(
        corpus="none",
        max_length=model.max_length,
        max_length_ratio=model.max_length_ratio,
        batch_tokens=max(4096, model.max_length),
        source_tag=tag,
        allow_unknown=model.allow_unknown,
    )
    tokenizer = TokenizerConfig(joint=config.tie_embeddings, normalization="none")  # of ours
    metadata = {
        **built.config.to_dict(),
        **tokenizer_metadata(*tokenizers),
        IMPORTED: f"from {origin}",
    }
    with atomic_folder(pathlib.Path(path)) as folder:
        run = RunDirectory(folder)
        Checkpoints(run.checkpoints_path).write(built, 0, {}, run_metadata=metadata)
        run.begin(RunConfig(data, tokenizer, built.config), *tokenizers)
    return built
