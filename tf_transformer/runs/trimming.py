"""A run whose vocabularies are trimmed to what given texts and their translations need."""

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.data.text import DataError
from tf_transformer.files import atomic_folder
from tf_transformer.inference.sentences import parts_of
from tf_transformer.models.architectures import with_tokenizers
from tf_transformer.models.base import SequenceModel
from tf_transformer.models.configs import ModelConfig
from tf_transformer.runs.checkpoints import Checkpoints, tokenizer_metadata
from tf_transformer.runs.restore import restore_model, translator_of
from tf_transformer.runs.run_directory import RunDirectory, RunError, say
from tf_transformer.tokenizers import subset

_TRIMMED = "trimmed"  # a key of the run metadata


def trim_run(
    run: RunDirectory,
    path: str | os.PathLike[str],
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    beam_size: int = 1,
    length_penalty: float | None = None,
    batch_size: int = 64,
    **options: Any,
) -> list[str]:
    """Writes a run with the best checkpoint of another one, and fewer subwords.

    It keeps the subwords of the texts, all that the model generates when it translates the sources,
    and what `subset_tokenizer` keeps. So texts are split as before, and greedy search, whose
    every token is kept, finds the same translations (unless two logits are equal up to rounding). A
    beam may choose another hypothesis, because each has lost the probability of dropped tokens.

    Args:
        run: The run directory.
        path: The new run directory.
        sources: Texts to translate.
        targets: Texts of the target whose subwords are kept, too.
        beam_size: Hypotheses of the search, whose subwords are all kept; 1 is greedy search.
        length_penalty: Length penalty of the beam.
        batch_size: Sentences in a batch.
        **options: `xla` and `threads`, see `Translator`.

    Returns:
        Lines of numbers after and before: subwords of each vocabulary and parameters; and the
        changed translations beside all.
    """
    if os.path.lexists(path):
        raise RunError(f"{path}: exists already. Give a folder that is to be made.")
    RunDirectory.create(path)
    if not any(map(str.strip, sources)):
        raise DataError("the sources have no text; give at least a line that is not blank")
    data = run.config().data
    # The parts that a translator searches one by one.
    sources = [part for parts in parts_of(sources, data.has_sources) for part, _ in parts]
    texts = (sources, targets)
    model, *tokenizers, checkpoint = restore_model(run)
    joint = tokenizers[0].model == tokenizers[1].model

    def translate(model: SequenceModel, tokenizers: Sequence[Any]) -> list[str]:
        translator = translator_of(data, model, *tokenizers, **options)
        found = translator.stream(sources, beam_size, batch_size, beam_size, length_penalty)
        size = tokenizers[1].vocab_size
        say(f"Translating {len(sources):,} lines with {size:,} target subwords.")
        return [best.text for best, *_ in found]

    recorders = [subset.Recorder(tokenizer) for tokenizer in tokenizers]
    before = translate(model, recorders)
    used = [
        recorder.marked() | subset.used_ids(tokenizer, lines)
        for recorder, tokenizer, lines in zip(recorders, tokenizers, texts, strict=True)
    ]
    if joint:
        used = [used[0] | used[1]] * 2
    trimmed, ids = zip(*map(subset.subset_tokenizer, tokenizers, used), strict=True)
    for arguments in zip(tokenizers, trimmed, ids, texts, strict=True):
        subset.require_same_splits(*arguments)
    smaller = trim_model(model, with_tokenizers(model.config, *trimmed), *ids)
    after = translate(smaller, trimmed)
    with atomic_folder(Path(path)) as folder:
        if (run.path / "test").is_dir():
            shutil.copytree(run.path / "test", folder / "test")
        new = RunDirectory(folder)
        Checkpoints(new.checkpoints_path).write(
            smaller,
            checkpoint.step,
            {},  # the metrics were measured before
            batches_seen=checkpoint.batches_seen,
            run_metadata={
                **checkpoint.run_metadata,
                **smaller.config.to_dict(),
                **tokenizer_metadata(*trimmed),
                _TRIMMED: f"from {run.path}, {checkpoint.path.name}",
            },
            seconds=checkpoint.seconds,
        )
        new.begin(run.config(), *trimmed)
    sides = ("subwords",) if joint else ("source subwords", "target subwords")
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    pairs = zip(sides, trimmed, tokenizers, strict=False)
    return [
        *(f"{few.vocab_size:,} of {many.vocab_size:,} {side}" for side, few, many in pairs),
        f"{smaller.count_params():,} of {model.count_params():,} parameters",
        f"{changed or 'none'} of {len(sources):,} translations changed",
    ]


def trim_model(
    model: SequenceModel, config: ModelConfig, source_ids: Sequence[int], target_ids: Sequence[int]
) -> SequenceModel:
    """Returns a model that computes as another one does, of fewer tokens.

    The logits of the tokens that are left are the same, up to rounding. Any architecture will do:
    which axes of its weights are vocabularies is seen in a second model of other vocabularies.

    Args:
        model: The model.
        config: Its configuration with the smaller vocabularies and their `pad_id`.
        source_ids: The source ids to keep, in the order of their new ids.
        target_ids: The same for the target; those of the source where the vocabulary is joint.
    """
    sizes = model.config.source_vocab_size, model.config.target_vocab_size
    is_joint = sizes[0] == sizes[1] and np.array_equal(source_ids, target_ids)
    # Only axes whose size changes between the two models are treated as vocabulary axes.
    source_size = max(sizes) + 1
    target_size = source_size + (not is_joint)
    ids_of = {source_size: source_ids, target_size: target_ids}
    other = dataclasses.replace(
        model.config, source_vocab_size=source_size, target_vocab_size=target_size
    )
    other_shapes = [variable.shape for variable in type(model)(other).variables]
    trimmed = type(model)(config, dtype=model.dtype_policy)
    rows = zip(trimmed.variables, model.variables, other_shapes, strict=True)
    for variable, old, other_shape in rows:
        value = old.numpy()
        for axis, (size, other_size) in enumerate(zip(old.shape, other_shape, strict=True)):
            if size != other_size and other_size in ids_of:
                value = np.take(value, ids_of[other_size], axis)
        variable.assign(value)
    return trimmed


def require_untrimmed(run: RunDirectory) -> None:
    """Raises a `RunError` for a run that `trim_run` wrote, which has no optimizer."""
    latest = Checkpoints(run.checkpoints_path).latest()
    if latest is not None and _TRIMMED in latest.run_metadata:
        raise RunError(
            f"{run.path}: was written by trim and cannot be resumed. Resume the run that was "
            f"trimmed, and trim it again."
        )
